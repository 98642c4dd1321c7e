"""Calls by the openai and anthropic packages, all at once, each by a client of its own.

Usage: sdk.py URL MODEL CALLS RETRIES
CALLS of each package, every other one streamed. Prints a line of JSON for each call as it ends: what every attempt met,
how long the client paused between two, and the text or the error it came to.
"""

import asyncio
import json
import sys
import time
from datetime import datetime, timezone

import anthropic
import openai

URL, MODEL, CALLS, RETRIES = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
TOLD = ["x-sluice-reason", "retry-after", "retry-after-ms", "x-should-retry"]
MESSAGES = [{"role": "user", "content": "Say something, please."}]


class Attempts:
    """Writes down every request that a client sends, and how it was answered."""

    def __init__(self):
        self.met = []
        self.pauses_ms = []
        self.answered_at = None
        self.hooks = {"request": [self.sent], "response": [self.answered]}

    async def sent(self, _request):
        if self.answered_at is not None:
            self.pauses_ms.append((time.monotonic() - self.answered_at) * 1000)

    async def answered(self, response):
        told = {name: response.headers[name] for name in TOLD if name in response.headers}
        self.met.append({"status": response.status_code} | told)
        self.answered_at = time.monotonic()


def settings(package, name, attempts):
    return {
        "api_key": "none",
        "max_retries": RETRIES,
        "default_headers": {"x-tenant-id": name, "x-client-request-id": name},
        "http_client": package.DefaultAsyncHttpxClient(event_hooks=attempts.hooks, trust_env=False),
    }


async def ask_openai(name, stream, attempts):
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", **settings(openai, name, attempts))
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4, stream=stream)
    if stream:
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices])
    return answer.choices[0].message.content


async def ask_anthropic(name, stream, attempts):
    client = anthropic.AsyncAnthropic(base_url=URL, **settings(anthropic, name, attempts))
    answer = await client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=4, stream=stream)
    if stream:
        return "".join([event.delta.text async for event in answer if event.type == "content_block_delta"])
    return answer.content[0].text


def seconds_left(headers):
    """The time until a budget is whole again, of the instant that Anthropic's fields give."""
    instant = headers.get("anthropic-ratelimit-requests-reset")
    if instant is None:
        return {}
    left = datetime.fromisoformat(instant.replace("Z", "+00:00")) - datetime.now(timezone.utc)
    return {"resets_in_s": left.total_seconds()}


async def call(package, ask, number):
    name, attempts, outcome = f"{package.__name__}-{number}", Attempts(), {}
    try:
        outcome["text"] = await ask(name, number % 2 == 1, attempts)
    except package.RateLimitError as error:
        headers = dict(error.response.headers)
        outcome["error"] = {"status": error.status_code, "headers": headers} | seconds_left(headers)
    except package.APIStatusError as error:
        outcome["error"] = {"status": error.status_code, "said": error.body}
    print(json.dumps({"name": name, "met": attempts.met, "pauses_ms": attempts.pauses_ms} | outcome), flush=True)


async def main():
    packages = [(openai, ask_openai), (anthropic, ask_anthropic)]
    await asyncio.gather(*(call(package, ask, number) for package, ask in packages for number in range(CALLS)))


asyncio.run(main())
