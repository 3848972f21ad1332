"""The databases that snowmelt reads: connect, capture, decode, chunks, types."""
