"""A small database of the tests' own. It implements the whole contract of databases.

server      the database as it exists: tables in memory, and a log
database    what a person who adds a database writes; begin here
comparing   its part for `verify`
mistakes    likely mistakes, which the behaviour suite must find
"""
