"""Running a pipeline or a service as a program: its terminal, its restarts and its Spark session."""
