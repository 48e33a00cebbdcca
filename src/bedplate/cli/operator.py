"""How commands on the same machine reach the running service: its address and a key of its own.

The service makes an admin key when it starts and writes it, with its address, to a file that only
its user can read; the key is revoked when it stops. Who can read the data folder could change the
keys anyway, so this gives nobody a right that they did not have.
"""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bedplate.config import Config
from bedplate.errors import ConfigError, EngineLost
from bedplate.gateway.keys import SERVICE_LABEL, KeyStore

OPERATOR = SERVICE_LABEL
FILE = "operator.json"
ANSWER_SECONDS = 10.0


class Operator(NamedTuple):
    """Address and key of a running service; `certificate` is what its TLS is checked against.

    `cards` are the ids of all cards that it was told to use, each with its model.
    """

    url: str
    key: str
    certificate: str | None
    cards: Mapping[str, str]


def register(config: Config, keys: KeyStore, url: str) -> str:
    """Make this run's admin key, write the file, and return the key's id.

    Keys that runs before left behind, because they were killed, end here.
    """
    now_ns = time.time_ns()
    for info in keys.list():
        if info.label == OPERATOR and info.state(now_ns) == "valid":
            keys.revoke(info.credential.key_id, now_ns=now_ns)
    made = keys.add(OPERATOR, now_ns=now_ns, label=OPERATOR, admin=True)
    path = config.service.data_dir / FILE
    certificate = config.service.tls_cert
    cards = {card: engine.model for engine in config.engines for card in engine.card_names}
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        found = Operator(url, made.secret, None if certificate is None else str(certificate), cards)
        json.dump(found._asdict(), file)
    temporary.replace(path)
    return made.key_id


def unregister(data_dir: Path, keys: KeyStore, key_id: str) -> None:
    """End this run's key and remove the file."""
    keys.revoke(key_id, now_ns=time.time_ns())
    (data_dir / FILE).unlink(missing_ok=True)


def find(data_dir: Path) -> Operator:
    """Return how to reach the service that runs on this data folder.

    Raises:
        ConfigError: none runs, or the file is another user's.
    """
    path = data_dir / FILE
    try:
        return Operator(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise ConfigError(
            f"No service runs on {data_dir}: start one with `bedplate serve`, "
            "or name its folder with --data-dir or its file with --config."
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"Cannot read {path}: {error}") from error


def call(operator: Operator, method: str, path: str, body: object = None) -> Any:
    """Call an endpoint of the running service, with a JSON body if there is one.

    Returns the decoded answer.

    Raises:
        EngineLost: nobody answers; the service was killed, or is still starting.
        ConfigError: the service refuses; the message is its own.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(operator.url + path, data, method=method)
    if data is not None:
        request.add_header("Content-Type", "application/json")
    request.add_header("Authorization", f"Bearer {operator.key}")
    context = ssl.create_default_context(cafile=operator.certificate)
    context.check_hostname = False  # the file names the certificate itself
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS, context=context) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        detail = json.load(error).get("error", {}).get("message", error.reason)
        raise ConfigError(str(detail)) from error
    except OSError as error:
        raise EngineLost(
            f"Nobody answers at {operator.url}: {error}. The service was ended without a drain, "
            "or is still starting."
        ) from error
