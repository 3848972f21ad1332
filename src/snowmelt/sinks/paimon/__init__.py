"""Apache Paimon: tables of pipelines (`sink`), and lake tables of Fluss (`tiering`). Nothing else uses pypaimon; `sinks.registry` only
imports it before workers are forked."""
