"""The captured log: recorded, stored, read again, handed over from one owner to the next."""
