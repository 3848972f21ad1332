"""What is compared of a table, on either side: digests of rows, and classes of them. Of no one database."""
