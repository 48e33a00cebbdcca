"""OpenAI's wire format: requests checked field by field, answers built as bytes."""
