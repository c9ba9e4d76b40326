"""Serve many requests with asyncio

New requests join the steps of those that are running.
"""

import asyncio

import oxillama


async def main() -> None:
    with oxillama.load() as engine:
        served = oxillama.AsyncEngine(engine)

        async def ask(prompt: str) -> str:
            return str(await served.generate(prompt, max_tokens=8, temperature=0))

        for text in await asyncio.gather(*map(ask, ["The fox", "The owl", "The bear"])):
            print(text)


asyncio.run(main())
