"""Limits on the total cost of calls: parallel calls, failures and crashes cannot exceed them."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path

import pytest

from engine.config.schema import parse_config
from engine.proposers.llm.calls.concurrency_limiter import APART_S, Gate
from engine.proposers.llm.calls.connect import PriceUnknown
from engine.proposers.llm.calls.ledger import OverBudget
from engine.proposers.llm.remote import Remote
from engine.proposers.registry import check_providers
from engine.session.records.events import BudgetChanged, ModelCallStarted, ShareChanged
from engine.session.records.model_calls import CallSite
from tests.engine.models.conftest import PROMPT, SITE, WIRES, Desk, Engine, Wire, model_table, until
from tests.model_server import Do, ModelServer
from tests.patience import PATIENCE_S

PRICED = 'model = "m"\nconcurrency = 64\ninput_price = 2.0\noutput_price = 10.0'


async def ask(desk: Desk, count: int, model: str = "m", problem: str = "softmax") -> list[BaseException]:
    """Make many concurrent calls, and return the failed ones."""
    sites = [CallSite(problem, 1, "kernel", f"i{number}") for number in range(count)]
    answers = await asyncio.gather(*(desk.callers[model].call(site, PROMPT) for site in sites), return_exceptions=True)
    return [answer for answer in answers if isinstance(answer, BaseException)]


@pytest.mark.parametrize(
    ("wire", "limit"),
    [
        ("chat", "tokens = 6000"),
        ("chat", "dollars = 0.05"),
        ("chat", "calls = 3"),
        ("anthropic", "tokens = 6000"),
        ("command", "dollars = 0.05"),
    ],
)
async def test_calls_at_once_never_overshoot(wire: Wire, limit: str, server: ModelServer, engine: Engine) -> None:
    server.default = Do(delay_s=0.02, reasoning=500)
    async with engine.life(f"[budget]\n{limit}\n" + model_table(wire, server, PRICED)) as desk:
        refused = await ask(desk, 40)
        assert refused and all(isinstance(one, OverBudget) and one.scope == "session" for one in refused)
        assert 0 < desk.spent.tokens == server.books.told.total
        assert desk.spent.tokens <= 6000 or not limit.startswith("tokens")
        assert desk.spent.dollars <= 0.05 or not limit.startswith("dollars")
        assert desk.spent.calls == server.books.calls
        if limit.startswith("calls"):
            assert desk.spent.calls == 3
        else:  # calls in flight reserved this money and released it, so others could use it
            assert desk.spent.calls > 5


async def test_failed_calls_count(server: ModelServer, engine: Engine) -> None:
    server.script(Do("server_error"), Do("rate_limit"), Do("server_error"))
    async with engine.life("[budget]\ncalls = 3\n" + model_table("chat", server, PRICED)) as desk:
        with pytest.raises(OverBudget, match="limit of 3 calls is reached: 3 calls sent"):
            await desk.caller.call(SITE, PROMPT)
        assert (desk.spent.calls, desk.spent.failed, server.books.calls) == (3, 3, 3)


async def test_what_nobody_counted_counts_in_full(server: ModelServer, engine: Engine) -> None:
    server.script(Do("drop_mid"))
    async with engine.life("[budget]\ntokens = 2000\n" + model_table("chat", server, PRICED)) as desk:
        with pytest.raises(OverBudget, match=r"limit of 2,000 tokens .* 0 used, up to 1,\d+ unconfirmed"):
            await desk.caller.call(SITE, PROMPT)
        assert server.books.calls == 1


async def test_a_limit_of_each_problem_leaves_the_others_alone(server: ModelServer, engine: Engine) -> None:
    text = "[budget]\nper_problem = { calls = 2 }\n" + model_table("chat", server, PRICED)
    async with engine.life(text) as desk:
        (refused,) = await ask(desk, 3)
        assert isinstance(refused, OverBudget)
        assert (refused.scope, refused.which) == ("problem", "softmax")
        assert str(refused) == "the limit of 2 calls for softmax is reached: 2 calls sent"
        # One call of two allowed: a kept connection that the server closes meanwhile costs the second.
        assert not await ask(desk, 1, problem="gelu")


async def test_a_limit_of_one_model_leaves_the_others_alone(server: ModelServer, engine: Engine) -> None:
    text = model_table("chat", server, PRICED + "\nbudget = { tokens = 1500 }") + model_table(
        "gemini", server, 'model = "other"'
    )
    async with engine.life(text) as desk:
        refused = await ask(desk, 20)
        assert {(one.scope, one.which) for one in refused if isinstance(one, OverBudget)} == {("model", "m")}
        assert not await ask(desk, 2, model="other")
        assert 0 < desk.state.spending.model["m"].tokens <= 1500
        assert desk.state.spending.model["other"].calls == 2


async def test_a_raised_limit_of_one_model_lets_it_go_on_after_a_resume_too(
    server: ModelServer, engine: Engine
) -> None:
    text = "[budget]\nper_problem = { calls = 9 }\n" + model_table("chat", server, PRICED + "\nbudget = { calls = 2 }")
    async with engine.life(text) as desk:
        (refused,) = await ask(desk, 3)
        assert str(refused) == "the limit of 2 calls for m is reached: 2 calls sent"
        await desk.journal.record(ShareChanged(model="m", calls=4))
        await desk.journal.record(ShareChanged(model="m", tokens=1_000_000))
        await desk.journal.record(ShareChanged(calls=3))
        assert len(await ask(desk, 5)) == 4
    async with engine.life(text) as desk:
        (refused,) = await ask(desk, 1)
        assert str(refused) == "the limit of 3 calls for softmax is reached: 3 calls sent"
        assert not await ask(desk, 1, problem="gelu")
        (refused,) = await ask(desk, 1, problem="gelu")
        assert str(refused) == "the limit of 4 calls for m is reached: 4 calls sent"


async def test_a_raised_limit_lets_the_search_go_on(server: ModelServer, engine: Engine) -> None:
    async with engine.life("[budget]\ndollars = 0.001\n" + model_table("chat", server, PRICED)) as desk:
        with pytest.raises(OverBudget, match=r"limit of \$0.001 is reached: \$0.00 spent, .* may cost \$0.01"):
            await desk.caller.call(SITE, PROMPT)
        await desk.journal.record(BudgetChanged(dollars=1.0))
        await desk.caller.call(SITE, PROMPT)
        assert desk.spent.dollars > 0


@pytest.mark.parametrize(("limit", "unit"), [("tokens = 1200", "tokens"), ("dollars = 0.008", "dollars")])
async def test_a_limit_below_one_call_names_the_key_that_decides_it_and_a_value_that_fits(
    limit: str, unit: str, server: ModelServer, engine: Engine, tmp_path: Path
) -> None:
    table = model_table("chat", server, PRICED)
    async with engine.life(f"[budget]\n{limit}\n{table}") as desk:
        with pytest.raises(OverBudget) as refused:
            await desk.caller.call(SITE, PROMPT)
        said = str(refused.value)
        assert "its max_output_tokens is 1000" in said
        (fits,) = (int(one) for one in re.findall(r"set max_output_tokens = (\d+) ", said))
        (larger,) = re.findall(r"raise the limit to \$?([\d.,]+)", said)
    allowed = {
        f"[budget]\n{limit}\n" + table.replace("max_output_tokens = 1000", f"max_output_tokens = {fits + 1}"): False,
        f"[budget]\n{limit}\n" + table.replace("max_output_tokens = 1000", f"max_output_tokens = {fits}"): True,
        f"[budget]\n{unit} = {larger.replace(',', '')}\n{table}": True,
    }
    for number, (text, is_enough) in enumerate(allowed.items()):
        async with Engine(tmp_path / str(number)).life(text) as desk:
            with contextlib.nullcontext() if is_enough else pytest.raises(OverBudget):
                await desk.caller.call(SITE, PROMPT)


async def test_a_limit_too_small_for_any_value_says_how_large_it_must_be(server: ModelServer, engine: Engine) -> None:
    async with engine.life("[budget]\ntokens = 300\n" + model_table("chat", server, PRICED)) as desk:
        with pytest.raises(OverBudget) as refused:
            await desk.caller.call(SITE, PROMPT)
        assert "max_output_tokens is 1000" in str(refused.value) and "set max_output_tokens" not in str(refused.value)


async def test_a_call_that_only_waits_for_others_goes_when_a_person_raises_the_limit(
    server: ModelServer, engine: Engine
) -> None:
    server.script(Do("hang"))
    async with engine.life("[budget]\ntokens = 2000\n" + model_table("chat", server, PRICED)) as desk:
        first = asyncio.create_task(desk.caller.call(SITE, PROMPT))
        await until(lambda: server.books.calls)
        second = asyncio.create_task(desk.caller.call(CallSite("softmax", 1, "kernel", "i2"), PROMPT))
        await asyncio.sleep(0.1)
        assert server.books.calls == 1
        await desk.journal.record(BudgetChanged(tokens=10_000))
        await second
        first.cancel()


async def test_a_limit_in_dollars_needs_a_price_and_says_so_before_a_session_is_made(
    server: ModelServer, engine: Engine, tmp_path: Path
) -> None:
    text = "[budget]\ndollars = 5\n" + model_table("chat", server, 'model = "m"')
    words = r"m has no known price, but the limit of \$5 requires one. Set input_price"
    with pytest.raises(PriceUnknown, match=words):
        check_providers(parse_config('problems = ["builtin:quickstart/softmax"]\n' + text, tmp_path / "config.toml"))
    with pytest.raises(PriceUnknown, match=words):
        async with engine.life(text):
            pass


async def test_without_a_price_dollars_are_unknown_and_never_0(server: ModelServer, engine: Engine) -> None:
    async with engine.life(model_table("chat", server, 'model = "m"')) as desk:
        await desk.caller.call(SITE, PROMPT)
        assert desk.spent.tokens > 0
        assert (desk.spent.unpriced, desk.spent.at_most.dollars) == (1, None)
        await desk.journal.record(BudgetChanged(dollars=1.0))
        with pytest.raises(OverBudget, match="the price of m is unknown"):
            await desk.caller.call(CallSite("softmax", 1, "kernel", "i2"), PROMPT)


async def test_too_many_requests_narrow_the_gate_and_replies_widen_it(server: ModelServer, engine: Engine) -> None:
    """A server that accepts two calls at a time."""
    server.script(*[Do(delay_s=0.02)] * 2, *[Do("rate_limit")] * 14)
    server.default = Do(delay_s=0.005)
    async with engine.life(model_table("chat", server, PRICED.replace("64", "16"))) as desk:
        assert not await ask(desk, 60)
        refusals = server.books.by_kind["rate_limit"]
        assert refusals == 14 and desk.spent.calls == 60 + refusals
        assert desk.spent.usage == server.books.told
        assert 1 <= desk.caller.gate.width < 16


async def test_a_place_that_nobody_takes_goes_to_the_next() -> None:
    gate = Gate(1)
    order: list[str] = []

    async def pass_through(name: str) -> None:
        async with gate.enter():
            order.append(name)

    async with gate.enter() as entered:
        first, second = (asyncio.create_task(pass_through(name)) for name in ("first", "second"))
        await asyncio.sleep(0)
        gate.refused(entered, pause_s=0.1)
    await asyncio.sleep(0.02)  # the first has the slot, and waits for the limiter to open
    first.cancel()
    await asyncio.wait_for(second, PATIENCE_S)
    assert order == ["second"]


async def test_calls_begin_one_after_the_other() -> None:
    gate = Gate(8)

    async def enter() -> float:
        async with gate.enter() as entered:
            await asyncio.sleep(0.05)
            return entered

    entered = sorted(await asyncio.gather(*(enter() for _ in range(16))))
    first = entered[0]
    assert all(at - first >= 0.99 * number * APART_S for number, at in enumerate(entered))
    assert gate.inside == 0


async def test_who_gives_up_before_its_turn_leaves_its_place() -> None:
    gate = Gate(1)

    async def enter() -> None:
        async with gate.enter():
            pass

    await enter()
    waiting = asyncio.create_task(enter())
    await asyncio.sleep(0)
    assert gate.inside == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gate.inside == 0


@pytest.mark.parametrize("wire", WIRES)
async def test_a_resumed_search_does_not_pay_again_for_a_reply_it_has(
    wire: Wire, server: ModelServer, engine: Engine
) -> None:
    text = model_table(wire, server, PRICED)
    async with engine.life(text) as desk:
        first = await desk.caller.call(SITE, PROMPT)
        spent = desk.spent.usage
    async with engine.life(text) as desk:
        assert await Remote(desk.caller, desk.state, desk.text).call(SITE, PROMPT) == first
        assert (server.books.calls, desk.spent.usage) == (1, spent)


async def test_calls_of_an_engine_that_died_count_as_the_most_they_may_have_cost(
    server: ModelServer, engine: Engine
) -> None:
    text = "[budget]\ntokens = 5000\n" + model_table("chat", server, PRICED)
    async with engine.life(text) as desk:
        await desk.caller.call(SITE, PROMPT)
        lost = ModelCallStarted(
            call="c2", attempt=1, provider="openai", model="m", site=SITE, prompt="", tokens=4000, dollars=0.04
        )
        await desk.journal.record(lost)  # and then killed
    async with engine.life(text) as desk:
        assert (desk.spent.usage, desk.spent.uncertain) == (server.books.told, 1)
        assert desk.spent.unknown == (4000, 0.04) and not desk.state.spending.flying
        with pytest.raises(OverBudget):
            await desk.caller.call(SITE, PROMPT)
        await desk.journal.record(BudgetChanged(tokens=10_000))
        await desk.caller.call(SITE, PROMPT)
        assert list(desk.state.spending.calls) == ["c1", "c2", "c4"]  # c3 was rejected


async def test_spend_is_kept_by_model_problem_round_and_idea(server: ModelServer, engine: Engine) -> None:
    text = model_table("responses", server, PRICED) + model_table("gemini", server, 'model = "other"')
    async with engine.life(text) as desk:
        for model, site in [
            ("m", CallSite("softmax", 1, "ideas", "v1")),
            ("m", CallSite("softmax", 1, "kernel", "i1")),
            ("other", CallSite("softmax", 2, "kernel", "i2")),
            ("other", CallSite("gelu", 0, "kernel", "i3")),
        ]:
            await desk.callers[model].call(site, PROMPT)
        spending = desk.state.spending
        assert {name: one.calls for name, one in spending.model.items()} == {"m": 2, "other": 2}
        assert {name: one.calls for name, one in spending.problem.items()} == {"softmax": 3, "gelu": 1}
        assert {name: one.calls for name, one in spending.round.items()} == {
            "softmax/r1": 2,
            "softmax/r2": 1,
            "gelu/r0": 1,
        }
        assert set(spending.idea) == {"i1", "i2", "i3"}
        assert spending.total.tokens == sum(one.tokens for one in spending.model.values()) == server.books.told.total
