"""snowmelt."""
