"""Files: tables of scores and model outputs, JSON, and durable writes.

Each format is read and written in one place, and errors name the file, the line and what stands there. What a result or
a configuration contains is decided in `results` and `mesh`; they use the helpers of this package.
"""
