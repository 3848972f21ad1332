"""The captured log: record it, store it, read it again, hand it over from one owner to the next."""
