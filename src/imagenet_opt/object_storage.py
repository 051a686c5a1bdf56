"""Objects in S3 (s3://), in Google Cloud Storage (gs://) or on a web server (https://), through obstore.

obstore runs threads of its own, which a fork does not copy: a forked process would wait forever. So each process opens
its own client at its first request, and a process that was forked from a process with a client raises an error.
"""

import errno
import logging
import math
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_opt.errors import ConfigError, StorageFailed, StorageForbidden, first_line

BUCKETS = {"s3": "S3", "gs": "Google Cloud Storage"}
"""Scheme -> service, which can be written."""
SCHEMES = (*BUCKETS, "https", "http")
_LISTED_AT_A_TIME = 1000
_PATIENCE = timedelta(minutes=2)
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_RETRIED = {"408", "429", "500", "502", "503", "504"}
_THROTTLED = {"429", "503"}
"""Answers of a service that wants fewer requests: S3 answers 503 SlowDown, Google Cloud Storage 429."""
_REMEDIES = {
    "NoSuchBucket": "there is no such bucket; check its name",
    "NoCredentials": "no credentials were found; set AWS_PROFILE, run `aws configure` or attach a role to the machine; "
    "for a public bucket set AWS_SKIP_SIGNATURE=true",
    "RequestTimeTooSkewed": "the clock of this machine is wrong, so signatures are refused; set the clock, for example "
    "with: timedatectl set-ntp true",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION to the region of the bucket",
    "PreconditionFailed": "the object was replaced after it was listed; its new content would mix with the old data "
    "set. Restore the object; or remove the folder index in data.cache_dir, which lists anew, and start a new run",
    "401": "the credentials are refused; check them with: aws sts get-caller-identity",
    "403": "this identity has no right to do that; check it with: aws sts get-caller-identity, and the policy of the "
    "bucket",
}
_SAME_REMEDY = {
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"), "401"),
    **dict.fromkeys(("AuthorizationHeaderMalformed", "301", "307"), "PermanentRedirect"),
    "412": "PreconditionFailed",
}
_SINCE = "since "
_opening = threading.Lock()
_opened_by: int | None = None
"""The process that opened the first client."""


class FoundObject(NamedTuple):
    """path: relative to the URL of the storage. size: bytes. etag: changes with the content: the ETag or, of a service
    that gives none or a weak one, which no request may name, the time of the last change; "" if unknown."""

    path: str
    size: int
    etag: str


def is_url(place: object) -> bool:
    """Whether `place` is a URL of objects, and not a folder."""
    scheme, separator, _ = str(place).partition("://")
    return bool(separator) and scheme in SCHEMES


def is_hub(place: object) -> bool:
    """Whether `place` is a data set on the Hugging Face Hub."""
    return str(place).startswith("hf://")


def is_web(url: str) -> bool:
    """Whether the URL is of a web server, which does not list its files."""
    return url.startswith("http")


def connection_remedy(url: str) -> str:
    """What to check if requests to `url` fail for a long time; names the address of S3 if the user has set one."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "") if url.startswith("s3:") else ""
    host = endpoint.rpartition("@")[2]  # without user and password
    place = f"the network and AWS_ENDPOINT_URL={host}" if endpoint else "the network and the service"
    return f"check {place}, then run the same command again"


def check_package(url: str, key: str) -> None:
    """Raise ConfigError if the package that reads URLs is not installed."""
    _obstore(url, key)


class ObjectStorage:
    """The objects below `url`, for example s3://bucket/imagenet.

    key: the config key that holds the URL, for messages. retries: False raises the first error, for callers that repeat
    requests themselves; True repeats requests for two minutes, with growing, random pauses.

    Every method raises OSError with errno EIO for an error that may pass, and EBUSY if the service asks for fewer
    requests (429, 503); FileNotFoundError; and StorageFailed, with a remedy, for an error that stays: no bucket, no
    right, wrong region, wrong clock, an object that was replaced.
    """

    def __init__(self, url: str, key: str, *, retries: bool = True) -> None:
        self.url, self.key, self.retries = url.rstrip("/"), key, retries
        self._client: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(ObjectStorage, retries=self.retries), (self.url, self.key)

    def name(self, path: str) -> str:
        """URL of an object, for messages."""
        return f"{self.url}/{path}" if path else self.url

    def objects(self, prefix: str = "") -> Iterator[list[FoundObject]]:
        """The objects below the folder `prefix`, in portions of up to 1000."""
        with self._request(prefix) as (obstore, client):
            for portion in obstore.list(client, prefix or None, chunk_size=_LISTED_AT_A_TIME):
                yield [_found(each["path"], each) for each in portion]

    def entries(self, prefix: str = "") -> tuple[list[str], list[FoundObject]]:
        """Names of the folders directly below the folder `prefix`, and the objects there."""
        with self._request(prefix) as (obstore, client):
            found = obstore.list_with_delimiter(client, prefix or None)
        folders = sorted(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])
        return folders, sorted(_found(each["path"], each) for each in found["objects"])

    def read(
        self, path: str, *, start: int = 0, size: int | None = None, etag: str = "", most: int | None = None
    ) -> bytes:
        """`size` bytes from `start`; None: all bytes. etag: raise StorageFailed if the object has another tag. most:
        raise StorageFailed, before the content is read, if there are more bytes."""
        options = _unless_replaced(etag)
        if start or size is not None:
            options["range"] = {"offset": start} if size is None else (start, start + size)
        with self._request(path) as (obstore, client):
            result = obstore.get(client, path, options=options)
            first, end = result.range
            if most is not None and end - first > most:
                raise StorageFailed(f"{self.name(path)} ({self.key}) has {end - first} bytes; expected at most {most}")
            content = bytes(result.bytes())
        expected = end - first if size is None else size
        if len(content) != expected:
            raise OSError(errno.EIO, f"{len(content)} of {expected} bytes arrived")
        return content

    def head(self, path: str) -> FoundObject | None:
        """Size and tag of an object; None if there is no such object."""
        try:
            with self._request(path) as (obstore, client):
                found = obstore.head(client, path)
        except FileNotFoundError:
            return None
        return _found(path, found)

    def write(self, path: str, content: bytes | Path) -> None:
        """Write an object, in parallel parts if it is large. Readers see the whole object or none."""
        with self._request(path) as (obstore, client):
            obstore.put(client, path, content)

    def upload(self, path: str, file: Path) -> None:
        """Write the content of a file, and compare the size of the object with that of the file."""
        self.write(path, file)
        found, size = self.head(path), file.stat().st_size
        if found is None or found.size != size:
            arrived = "nothing" if found is None else f"{found.size} bytes"
            raise OSError(errno.EIO, f"{arrived} of {size} bytes arrived")

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the storage."""
        with self._request(source) as (obstore, client):
            obstore.copy(client, source, target)

    def delete(self, path: str) -> None:
        with self._request(path) as (obstore, client):
            obstore.delete(client, path)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise StorageFailed instead of an OSError, for requests that were repeated for two minutes."""
        try:
            yield
        except OSError as error:
            what = error.strerror or str(error)
            raise StorageFailed(f"{self.name('')} ({self.key}): {what}; {connection_remedy(self.url)}") from error

    @contextmanager
    def _request(self, path: str) -> Iterator[tuple[Any, Any]]:
        """obstore and the client of this process; errors of obstore are replaced as the class says."""
        obstore = _obstore(self.url, self.key)
        self._check_process()
        try:
            with _opening:  # many threads may make the first request together
                if self._client is None:
                    self._client = _client(self.url, self.key, self.retries)
            yield obstore, self._client
        except (obstore.exceptions.BaseError, FileNotFoundError) as error:
            raise _explain(error, self.name(path), self.key) from error

    def _check_process(self) -> None:
        global _opened_by
        _opened_by = _opened_by or os.getpid()
        if _opened_by != os.getpid():
            raise StorageFailed(
                f"process {os.getpid()} was forked from process {_opened_by}, which had opened {self.url} "
                f"({self.key}); requests of a forked process never end. Start processes with multiprocessing's "
                "forkserver or spawn"
            )


def _found(path: str, meta: Any) -> FoundObject:
    etag, changed = meta["e_tag"] or "", math.ceil(meta["last_modified"].timestamp())
    if not etag or etag.startswith("W/"):
        etag = f"{_SINCE}{changed}" if changed > 0 else ""
    return FoundObject(path, meta["size"], etag)


def _unless_replaced(etag: str) -> dict[str, Any]:
    """Options of a request that fails if the object is not the one of this tag."""
    if etag.startswith(_SINCE):
        return {"if_unmodified_since": datetime.fromtimestamp(int(etag.removeprefix(_SINCE)), UTC)}
    return {"if_match": etag} if etag else {}


def _obstore(url: str, key: str) -> Any:
    try:
        import obstore
    except ModuleNotFoundError as error:
        package = 'pip install "imagenet-opt[cloud]"'
        raise ConfigError(f"{key}={url} needs a package that is not installed: {package}") from error
    return obstore


def _client(url: str, key: str, retries: bool) -> Any:
    """A client of obstore. boto3 finds the credentials of S3 as the AWS tools do: environment, profile, role of the
    machine. obstore finds the credentials of Google."""
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import from_url

    options: dict[str, Any] = {"retry_config": {"max_retries": 10 if retries else 0, "retry_timeout": _PATIENCE}}
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "") if url.startswith("s3:") else url
    if endpoint.startswith("http:"):
        options["client_options"] = {"allow_http": True}
    logging.getLogger("botocore").setLevel(logging.WARNING)  # else it logs where it found the credentials
    if url.startswith("s3:") and os.environ.get("AWS_SKIP_SIGNATURE", "").lower() not in ("1", "true"):
        try:
            options["credential_provider"] = Boto3CredentialProvider()
        except ValueError as error:
            raise _failed(url, key, "NoCredentials") from error
    return from_url(url, **options)


def _explain(error: BaseException, name: str, key: str) -> Exception:
    """The error for callers: OSError if the request may succeed later, else StorageFailed."""
    text = str(error)
    if isinstance(error, FileNotFoundError) and "<Code>NoSuchBucket" not in text:
        return FileNotFoundError(errno.ENOENT, "there is no such object")
    status, code = _STATUS.search(text), _CODE.search(text)
    words = [found.group(1) for found in (code, status) if found]
    if "redirect without LOCATION" in text:
        words.append("301")
    if status is None and not words and "HTTP error" in text:
        return OSError(errno.EIO, "no connection, or a broken one")
    if status is not None and status.group(1) in _RETRIED:
        number = errno.EBUSY if status.group(1) in _THROTTLED else errno.EIO
        return OSError(number, " ".join(reversed(words)))
    for word in words:
        if (same := _SAME_REMEDY.get(word, word)) in _REMEDIES:
            return _failed(name, key, same, " ".join(reversed(words)))
    remedy = "; rename or remove this object" if "invalid path" in text else ""
    return StorageFailed(f"{name} ({key}): {first_line(error)[:300]}{remedy}")


def _failed(name: str, key: str, remedy: str, reason: str = "") -> StorageFailed:
    kind = StorageForbidden if remedy == "403" else StorageFailed
    return kind(f"{name} ({key}): {f'{reason}: ' if reason else ''}{_REMEDIES[remedy]}")
