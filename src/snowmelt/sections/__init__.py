"""What sections of pipeline.yaml are made of: `config` puts them together, each database has its own section of a source.

Laws:
- An error is one line: file and line, the key, what was found, what is allowed. All errors of a file are told at once.
- What may be a secret is never repeated: not the value of a key that we don't know, nor an address that may hold credentials.
- Text is text. YAML's own guesses (`no` is false, `1:30` is ninety) are not made; a key's type decides how its text is read.
- A file has limits: its bytes, its depth, and how much its aliases unfold to.
"""
