"""Apache Fluss: tables of pipelines (`sink`). Tasks stage records (`writer`), intents name them (`staging`), and a commit puts them."""
