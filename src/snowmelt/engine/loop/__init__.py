"""A driver at work: its turn, and what one turn after the other moves on."""
