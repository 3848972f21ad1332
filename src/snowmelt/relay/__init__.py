"""The log in flight: captured raw, kept until it is covered. Pure here: what is kept and from where capture goes on."""
