"""A session's frozen records: events, verdicts, requests and model calls. The modules also format the records
as text.
"""
