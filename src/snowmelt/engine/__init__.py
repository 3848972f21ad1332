"""The epoch loop: the shell that moves the pure machines, with Spark jobs, real databases and a real lake."""
