"""Results for people: Markdown tables, JSON, plots."""
