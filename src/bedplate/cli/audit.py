"""Verify the journal, write its newest checkpoint out, prove a record, erase what was said."""

from __future__ import annotations

import base64
import os
import pwd
import time
from pathlib import Path
from typing import Annotated

import typer

from bedplate.cli.options import ConfigOption, JsonOption
from bedplate.cli.output import print_json, print_notice, print_text, progress
from bedplate.config import load
from bedplate.errors import ConfigError, InvalidRequest, JournalError
from bedplate.journal import Journal, Reader, Record, tree
from bedplate.journal import checkpoint as notes
from bedplate.journal import verify as verify_journal
from bedplate.journal.keys import Verifier
from bedplate.journal.record import canonical_bytes
from bedplate.metering.names import NAMES_KIND, session_names

app = typer.Typer(no_args_is_help=True)

DataOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Data folder (or the journal's own), instead of a file's."),
]


@app.command()
def verify(
    *,
    data_dir: DataOption = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint that was kept outside.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="signer.pub kept outside; default: the one of the journal.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also decode every body and check SQLite's indices.")
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Recompute the tree over all records and compare it with every checkpoint."""
    folder = journal_folder(config, data_dir)
    with Reader(folder) as reader:
        size = reader.size
    with progress("Verifying records", size) as advance:
        report = verify_journal(
            folder,
            checkpoint=None if checkpoint is None else _read(checkpoint),
            key=None if key is None else Verifier.parse(_read(key).decode(errors="replace")),
            deep=deep,
            progress=lambda done, total: advance(done),
        )
    root = base64.b64encode(report.root).decode()
    if json:
        print_json(
            {
                "verified": True,
                "origin": report.origin,
                "size": report.size,
                "root": root,
                "key": report.key,
                "checkpoints": report.checkpoints,
                "unsigned": report.unsigned,
                "contents": report.contents,
                "external_size": report.external_size,
            }
        )
        return
    print_text(f"verified: {report.size} records of {report.origin}")
    print_text(f"root {root}")
    print_text(f"{report.checkpoints} checkpoints signed by {report.key}")
    print_text(f"{report.unsigned} records since the last one; {report.contents} contents")
    if report.external_size is None:
        print_notice(
            "Checked against the journal's own checkpoints only. A cut tail shows against one that "
            "was kept outside: bedplate audit verify --checkpoint FILE"
        )
    else:
        print_text(f"the checkpoint given covers the first {report.external_size} of them")


@app.command()
def checkpoint(
    *,
    out: Annotated[
        Path | None, typer.Option(help="Write it to this file, in one step; default: stdout.")
    ] = None,
    data_dir: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Print or write the newest signed checkpoint, to be kept outside."""
    with Reader(journal_folder(config, data_dir)) as reader:
        note = reader.last_checkpoint()
    if note is None:
        raise JournalError("the journal has no checkpoint yet; its first record makes one")
    if out is not None:
        _write(out, note)
    claim = notes.parse(note)
    if json:
        print_json(
            {
                "origin": claim.origin,
                "size": claim.size,
                "root": base64.b64encode(claim.root).decode(),
                "note": note.decode(),
                "file": None if out is None else str(out),
            }
        )
    elif out is None:
        print_text(note.decode().rstrip("\n"))
    else:
        print_text(f"checkpoint of {claim.size} records of {claim.origin} written to {out}")


@app.command()
def proof(
    seq: Annotated[int, typer.Argument(metavar="SEQ", help="Number of the record, from 0.")],
    *,
    data_dir: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Prove that a record is in the journal that the newest checkpoint describes."""
    folder = journal_folder(config, data_dir)
    with Reader(folder) as reader:
        note = reader.last_checkpoint()
        claim = notes.verify(note, Verifier.load(folder)) if note is not None else None
        if note is None or claim is None or not 0 <= seq < claim.size:
            covered = 0 if claim is None else claim.size
            raise InvalidRequest(
                f"the newest checkpoint covers {covered} records, not number {seq}"
            )
        record = next(reader.read(seq))
        with progress("Hashing records"):
            parts = tree.inclusion_proof(seq, claim.size, reader.subtree_root)
            leaf = reader.subtree_root(seq, seq + 1)
    if not tree.verify_inclusion(leaf, seq, claim.size, parts, claim.root):
        raise JournalError(
            f"record {seq} does not match the newest checkpoint; run `bedplate audit verify`"
        )
    coded = [base64.b64encode(part).decode() for part in parts]
    if json:
        print_json(
            {
                "seq": seq,
                "record": canonical_bytes(record).decode(),
                "leaf": base64.b64encode(leaf).decode(),
                "proof": coded,
                "checkpoint": note.decode(),
            }
        )
        return
    print_text(canonical_bytes(record).decode())
    print_text("\n".join(["", *coded, "", note.decode().rstrip("\n")]))


@app.command()
def erase(
    *,
    session: Annotated[
        str, typer.Option(help="Its id or name, as `bedplate bill --by session` lists.")
    ],
    tenant: Annotated[
        str | None, typer.Option(help="Whose it is; needed where several tenants have the id.")
    ] = None,
    data_dir: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Erase a session's prompts, answers and tool data. The service must be stopped."""
    folder = journal_folder(config, data_dir)
    with Reader(folder) as reader:
        origin = reader.origin
    with Journal.open(folder, origin=origin) as journal:
        session, owner, count = _owner(folder, session, tenant)
        # First the note: a crash between the two leaves contents, which the next try erases.
        number = journal.next_seq
        time_ns = max(time.time_ns(), journal.last_time_ns)
        user = {"uid": os.getuid(), "user": _user_name()}
        body = {"verb": "erase", **user, "contents": count}
        journal.append([Record(number, time_ns, "operator", owner, session, body)])
        erased = journal.erase_content(tenant=owner, session=session)
    if json:
        found = {"tenant": owner, "session": session, "erased": erased, "record": number}
        print_json({**found, **user})
        return
    print_text(
        f"erased {erased} contents of session {session} of {owner}; record {number} says who did"
    )


def _owner(folder: Path, session: str, tenant: str | None) -> tuple[str, str, int]:
    """Return the one session that is meant by id or name, its tenant, and its contents' number."""
    with Reader(folder) as reader:
        found = _contents(reader, session, tenant)
        if not found and session:
            known = session_names(reader.read(kinds=(NAMES_KIND,))).values()
            meant = [one for one in known if one.name == session and tenant in (None, one.tenant)]
            found = [
                one for named in meant for one in _contents(reader, named.session, named.tenant)
            ]
            if len(found) > 1:
                listed = ", ".join(f"{named} of {owner}" for named, owner, _ in found)
                raise InvalidRequest(
                    f"several sessions were named {session!r}: {listed}; give an id"
                )
    if not found:
        whose = "" if tenant is None else f" of tenant {tenant!r}"
        raise InvalidRequest(
            f"the journal in {folder} holds no contents of session {session!r}{whose}; "
            "`bedplate bill --by session` lists the sessions"
        )
    if len(found) > 1:
        names = ", ".join(owner for _, owner, _ in found)
        raise InvalidRequest(
            f"several tenants have a session {session!r}: {names}; say which with --tenant"
        )
    return found[0]


def _contents(reader: Reader, session: str, tenant: str | None) -> list[tuple[str, str, int]]:
    """Return whose contents this id has; the empty one owns the core's snapshots."""
    owners = reader.owners(session) if session else []
    return [(session, owner, count) for owner, count in owners if tenant in (None, owner)]


def _user_name() -> str:
    """Return the name of the user that runs this, as the system has it; empty where it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def journal_folder(config: Path | None, data_dir: Path | None) -> Path:
    """Return the folder of the journal that the options mean.

    Raises:
        ConfigError: the configuration cannot be used, or both options are given.
    """
    if data_dir is None:
        return load(config, secrets=False).journal_dir
    if config is not None:
        raise ConfigError("give --config or --data-dir, not both")
    inner = data_dir / "journal"
    return inner if inner.is_dir() else data_dir


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(notes.NOTE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}") from error


def _write(path: Path, data: bytes) -> None:
    """Replace the file in one step, so that whoever takes it away never sees a part."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise InvalidRequest(f"cannot write {path}: {error.strerror}") from error
