"""Shared by the checks of clients: how a check is declared, the requests, and the types of answers."""
import importlib.metadata
import os
import pathlib
import sys
from typing import Literal

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "e2e"))
os.environ["OPENAI_API_KEY"] = "none"
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
import harness  # noqa: E402
from pydantic import BaseModel, ConfigDict  # noqa: E402

ASK = "How is the weather in Oslo?"
MESSAGES = [{"role": "user", "content": ASK}]
MODEL = harness.MODEL_ID
CHECKS = []


class Weather(BaseModel):
    """The weather of a city. No other members, or a small model goes on with them until it is cut."""
    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Bergen"]
    kind: Literal["dry", "wet"]


class City(BaseModel):
    """The weather of a city."""
    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Bergen"]


def weather(city: Literal["Oslo", "Bergen"]) -> str:
    """Weather of a city.

    Args:
        city: the city
    """
    return f"rain in {city}"


CITY_SCHEMA = {"type": "object", "required": ["city"], "additionalProperties": False, "properties": {"city": {"enum": ["Oslo", "Bergen"]}}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather of a city.", "strict": True, "parameters": CITY_SCHEMA}}


def check(package, feature):
    """A line of the table. f(d) raises an exception to fail; it is left out if the package is not installed."""
    def add(f):
        CHECKS.append((package, feature, f))
        return f
    return add


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
