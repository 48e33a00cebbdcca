"""Links: published rows into the project's form, constants fitted on them, and their errors."""
