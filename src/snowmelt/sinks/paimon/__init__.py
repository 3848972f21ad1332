"""Apache Paimon: tables of pipelines (`sink`), and lake tables of Fluss (`tiering`). Nothing else imports pypaimon."""
