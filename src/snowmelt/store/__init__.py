"""The state store: small immutable records under one address, made exclusive by put-if-absent."""
