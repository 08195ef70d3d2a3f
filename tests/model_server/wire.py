"""Wire formats of each protocol: stream events, whole replies, errors."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from engine.session.records.model_calls import Finish, Usage
from tests.model_server.asked import Asked, Dialect

Error = Literal["rate_limit", "quota", "server_error", "overloaded", "key", "unknown_model", "bad_request"]
STATUS: dict[Error, int] = {
    "rate_limit": 429,
    "quota": 429,
    "server_error": 500,
    "overloaded": 529,
    "key": 401,
    "unknown_model": 404,
    "bad_request": 400,
}
_OPENAI_CODE: dict[Error, str | None] = {
    "rate_limit": "rate_limit_exceeded",
    "quota": "insufficient_quota",
    "server_error": None,
    "overloaded": None,
    "key": "invalid_api_key",
    "unknown_model": "model_not_found",
    "bad_request": "unsupported_value",
}
_GEMINI_STATUS: dict[Error, str] = {
    "rate_limit": "RESOURCE_EXHAUSTED",
    "quota": "RESOURCE_EXHAUSTED",
    "server_error": "INTERNAL",
    "overloaded": "UNAVAILABLE",
    "key": "INVALID_ARGUMENT",
    "unknown_model": "NOT_FOUND",
    "bad_request": "INVALID_ARGUMENT",
}
_ANTHROPIC: dict[Error, tuple[int, str]] = {
    "rate_limit": (429, "rate_limit_error"),
    "quota": (402, "billing_error"),
    "server_error": (500, "api_error"),
    "overloaded": (529, "overloaded_error"),
    "key": (401, "authentication_error"),
    "unknown_model": (404, "not_found_error"),
    "bad_request": (400, "invalid_request_error"),
}
"""Status and error type (platform.claude.com/docs/en/api/errors)."""


@dataclass(frozen=True)
class Answer:
    """A reply to send. ``piece``: characters per stream event. ``counts``: an OpenAI usage object that replaces the
    usual one. ``parts``: whether chat events carry lists of thinking and text, as Mistral's do.
    """

    text: str
    usage: Usage
    model: str
    finish: Finish
    tier: str
    piece: int = 12
    counts: dict[str, Any] | None = None
    parts: bool = False


def stream_of(asked: Asked, answer: Answer) -> Iterator[bytes]:
    """Yield the events of a streamed reply. The last one or two end it."""
    yield from {
        "responses": _responses_events,
        "chat": _chat_events,
        "gemini": _gemini_events,
        "anthropic": _anthropic_events,
    }[asked.dialect](answer)


def terminal_events(dialect: Dialect) -> int:
    """Return how many final events mark a stream as complete."""
    return {"responses": 1, "chat": 3, "gemini": 1, "anthropic": 2}[dialect]


def whole_of(asked: Asked, answer: Answer) -> bytes:
    """Return the reply to a request without a stream."""
    if asked.dialect == "responses":
        return _json(_response(answer, whole=True))
    if asked.dialect == "chat":
        message = {"role": "assistant", "content": answer.text}
        choice = {"index": 0, "message": message, "finish_reason": _chat_finish(answer.finish)}
        return _json({**_chunk(answer), "object": "chat.completion", "choices": [choice], "usage": _chat_usage(answer)})
    if asked.dialect == "anthropic":
        raise NotImplementedError("the engine always asks Anthropic for a stream")
    return _json(_gemini_chunk(answer, answer.text, last=True))


def error_of(dialect: Dialect, error: Error, message: str, retry_after: str | None) -> tuple[int, bytes]:
    """Return status and body of an error."""
    status = STATUS[error]
    if dialect == "anthropic":
        status, kind = _ANTHROPIC[error]
        return status, _json({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"})
    if dialect != "gemini":
        kind = "insufficient_quota" if error == "quota" else "invalid_request_error"
        return status, _json({"error": {"message": message, "type": kind, "param": None, "code": _OPENAI_CODE[error]}})
    details: list[dict[str, Any]] = []
    if error == "key":
        status = 400
        details.append({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"})
    if error in ("rate_limit", "quota"):
        quota = f"GenerateRequestsPer{'Day' if error == 'quota' else 'Minute'}PerProjectPerModel"
        details.append({"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota}]})
    if retry_after is not None and retry_after.isdigit():
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{retry_after}s"})
    return status, _json(
        {"error": {"code": status, "message": message, "status": _GEMINI_STATUS[error], "details": details}}
    )


def error_event(dialect: Dialect) -> bytes:
    """Return an error in the middle of a stream."""
    if dialect == "responses":
        failed = {**_response(Answer("", Usage(), "m", "stop", "default"), whole=False), "status": "failed"}
        failed |= {"usage": None, "error": {"code": "server_error", "message": "the model crashed"}}
        return _sse({"type": "response.failed", "response": failed, "sequence_number": 9}, "response.failed")
    if dialect == "chat":
        return _sse({"error": {"message": "the model crashed", "type": "server_error", "code": None}})
    if dialect == "anthropic":
        overloaded = {"type": "overloaded_error", "message": "the model crashed"}
        return _sse({"type": "error", "error": overloaded, "request_id": "req_1"}, "error")
    return _sse({"error": {"code": 503, "message": "the model crashed", "status": "UNAVAILABLE"}})


def malformed_event(dialect: Dialect) -> bytes:
    """Return an event with malformed JSON."""
    if dialect == "anthropic":
        return b'event: content_block_delta\ndata: {"type": "content_block_delta", "delta": {"text": "int ma\n\n'
    return b'data: {"type": "response.output_text.delta", "delta": "int ma\n\n'


def acts_of(answer: Answer, kind: str, message: str, retry_after: str | None, pause_s: float) -> bytes:
    """Return what the program ``agent.py`` shall do: lines of JSON, each an action with its arguments."""
    usage = answer.usage
    # Lone surrogates become a byte that is invalid in UTF-8.
    text = answer.text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    data = re.sub("[\ud800-\udfff]", "\udcff", text).encode(errors="surrogateescape").decode("latin-1")
    starts = range(0, len(data), answer.piece)
    whole: list[list[Any]] = [["write", data[start : start + answer.piece], pause_s] for start in starts]
    half = whole[: len(whole) // 2]
    report = {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cached_tokens": usage.cached,
        "reasoning_tokens": usage.reasoning,
        "model": answer.model.encode(errors="replace").decode(),
        "finish": answer.finish,
    }
    nothing = ["say", 'kernel-tui-usage: {"input_tokens": 0, "output_tokens": 0}']
    failure = {"kind": "server" if kind in ("server_error", "error_event") else kind}
    wait = {"retry_after_s": float(retry_after)} if retry_after is not None and retry_after.isdigit() else {}
    fail = [
        ["say", message.encode(errors="replace").decode() or f"scripted {kind}"],
        ["say", f"kernel-tui-failure: {json.dumps({**failure, **wait})}"],
    ]
    acts: dict[str, list[list[Any]]] = {
        "reply": [*whole, ["say", f"kernel-tui-usage: {json.dumps(report)}"], ["exit", 0]],
        "drop_before": [["say", "out of luck"], ["exit", 3]],
        "drop_mid": [*half, ["die"]],
        "malformed": [*whole, ["say", 'kernel-tui-usage: {"input_tokens": 12'], ["exit", 0]],
        "html": [["exit", 0]],
        "hang": [["hang"]],
        "hang_open": [["babble"]],
        "error_event": [*half, *fail, ["exit", 1]],
    }
    steps = acts.get(kind, [*fail, nothing, ["exit", 1]])
    return "".join(json.dumps(step) + "\n" for step in steps).encode()


def _pieces(answer: Answer) -> Iterator[str]:
    for start in range(0, max(1, len(answer.text)), answer.piece):
        yield answer.text[start : start + answer.piece]


def _responses_events(answer: Answer) -> Iterator[bytes]:
    number = 0

    def event(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return _sse({"type": kind, "sequence_number": number, **fields}, kind)

    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    said = "refusal" if answer.finish == "refusal" else "output_text"
    yield event("response.created", response=_response(answer, whole=False))
    for piece in _pieces(answer):
        yield event(f"response.{said}.delta", delta=piece, logprobs=[], **place)
    done = {"refusal": answer.text} if said == "refusal" else {"text": answer.text, "logprobs": []}
    yield event(f"response.{said}.done", **done, **place)
    last = "response.incomplete" if answer.finish == "length" else "response.completed"
    yield event(last, response=_response(answer, whole=True))


def _response(answer: Answer, *, whole: bool) -> dict[str, Any]:
    usage = answer.usage
    part = (
        {"type": "refusal", "refusal": answer.text}
        if answer.finish == "refusal"
        else {"type": "output_text", "text": answer.text, "annotations": []}
    )
    message = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": time.time(),
        "model": answer.model,
        "status": ("incomplete" if answer.finish == "length" else "completed") if whole else "in_progress",
        "incomplete_details": {"reason": "max_output_tokens"} if answer.finish == "length" and whole else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "output": [message] if whole else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
        "service_tier": answer.tier,
        "usage": answer.counts
        or {
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_written},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.total,
        }
        if whole
        else None,
    }


def _chat_events(answer: Answer) -> Iterator[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _sse({**_chunk(answer), "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    said = "refusal" if answer.finish == "refusal" else "content"
    for piece in _pieces(answer):
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Let me see."}]}
        yield chunk({said: [thinking, {"type": "text", "text": piece}] if answer.parts else piece})
    yield chunk({}, _chat_finish(answer.finish))
    yield _sse({**_chunk(answer), "choices": [], "usage": _chat_usage(answer)})
    yield b"data: [DONE]\n\n"


def _chat_finish(finish: Finish) -> str:
    return "length" if finish == "length" else "stop"


def _chunk(answer: Answer) -> dict[str, Any]:
    created = int(time.time())
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": created, "model": answer.model}


def _chat_usage(answer: Answer) -> dict[str, Any]:
    if answer.counts is not None:
        return answer.counts
    usage = answer.usage
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _gemini_events(answer: Answer) -> Iterator[bytes]:
    pieces = list(_pieces(answer))
    for number, piece in enumerate(pieces):
        yield _sse(_gemini_chunk(answer, piece, last=number == len(pieces) - 1), end="\r\n\r\n")


def _gemini_chunk(answer: Answer, text: str, *, last: bool) -> dict[str, Any]:
    usage = answer.usage
    counts: dict[str, Any] = {"promptTokenCount": usage.input}
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
    if last:
        candidate["finishReason"] = {"stop": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY"}[answer.finish]
        # Thoughts are beside the candidates, not among them.
        counts |= {
            "candidatesTokenCount": usage.output - usage.reasoning,
            "thoughtsTokenCount": usage.reasoning,
            "cachedContentTokenCount": usage.cached,
            "totalTokenCount": usage.total,
        }
    return {"candidates": [candidate], "usageMetadata": counts, "modelVersion": answer.model, "responseId": "r1"}


def _anthropic_events(answer: Answer) -> Iterator[bytes]:
    usage = answer.usage
    given = {
        "input_tokens": usage.input - usage.cached - usage.cache_written,
        "cache_creation_input_tokens": usage.cache_written,
        "cache_read_input_tokens": usage.cached,
    }

    def event(kind: str, **fields: Any) -> bytes:
        return _sse({"type": kind, **fields}, kind)

    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**given, "output_tokens": 1, "service_tier": answer.tier},
    }
    yield event("message_start", message=message)
    index = 0
    if usage.reasoning:
        yield event("content_block_start", index=0, content_block={"type": "thinking", "thinking": "", "signature": ""})
        yield event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "Let me see."})
        yield event("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "EqQB"})
        yield event("content_block_stop", index=0)
        index = 1
    yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
    yield event("ping")
    for piece in _pieces(answer):
        yield event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
    yield event("content_block_stop", index=index)
    reason = {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal"}[answer.finish]
    told = {**given, "output_tokens": usage.output, "output_tokens_details": {"thinking_tokens": usage.reasoning}}
    yield event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=told)
    yield event("message_stop")


def _sse(content: dict[str, Any], event: str = "", end: str = "\n\n") -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(content)}{end}".encode()


def _json(content: object) -> bytes:
    return json.dumps(content).encode()
