"""Files: tables of scores and model outputs, and durable writes. Each format is read and written in one place."""
