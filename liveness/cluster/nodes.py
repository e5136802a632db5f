"""One Redis server, with one connection that is opened when it is needed.

The commands of all partitions share the connection: each is written at once, and the
answers come in the same order. No command is sent twice: one without an answer may have
run, and only its sender knows what to do then.

The clients of coredis are not used: `RedisCluster` without retries does not look for the new
master of a node that refuses connections, and both leave buffers open after each attempt to
connect that fails.
"""

import logging
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from anyio import (
    BrokenResourceError,
    EndOfStream,
    Lock,
    connect_tcp,
    fail_after,
    to_thread,
)
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled

from liveness.config.cluster import ClusterSettings
from liveness.config.secret_file import read_secret
from liveness.errors import StartError

if TYPE_CHECKING:
    from liveness.cluster.transport import RedisConnection

Kind: TypeAlias = Literal[
    "timeout", "connection", "readonly", "memory", "moving",
    "auth", "permission", "loading", "other",
]  # fmt: skip
Word: TypeAlias = str | int | bytes

# Kinds of errors of a server, by the class in coredis, or by the first word.
KINDS: Final[dict[str, Kind]] = {
    "TimeoutError": "timeout",
    "ConnectionError": "connection",
    "ReadOnlyError": "readonly",
    "MASTERDOWN": "readonly",
    "OOM": "memory",
    "TryAgainError": "moving",
    "ClusterDownError": "moving",
    "MovedError": "moving",
    "AskError": "moving",
    "AuthenticationRequiredError": "auth",
    "AuthenticationFailureError": "auth",
    "AuthorizationError": "permission",
    "BusyLoadingError": "loading",
    "BUSY": "loading",
}
# From here on, the error about an unknown command repeats its arguments: those of HELLO
# include the password.
_REPEATED: Final = ", with args beginning with"
# The error of a function if the ACL refuses a command in it: Redis 7.0, and later.
_REFUSED_INSIDE: Final = ("The user executing the script", "ACL failure in script")
# What an operator can do about a failure, by its kind.
_REMEDIES: Final[dict[Kind, str]] = {
    "auth": "correct cluster.user and cluster.password_file",
    "permission": "give cluster.user that right",
    "connection": "is the address right, and does Redis run there?",
    "memory": "set maxmemory-policy noeviction, and give Redis enough memory",
}


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class CallError(Exception):
    """A call had no answer, or Redis refused it.

    Its text names the server and the reason, and never a password. With *address*, that
    node of the Cluster has the slot, and nothing was run; *is_ask*: only for this call, as
    the slot is still moving.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        address: Address | None = None,
        *,
        is_ask: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.address = address
        self.is_ask = is_ask

    @property
    def advice(self) -> str:
        remedy = _REMEDIES.get(self.kind, "see Redis' log")
        return f"{self}; {remedy}"


class RedisNode:
    """A Redis server; the arguments are those of `connection.Redis`."""

    def __init__(
        self,
        address: Address,
        settings: ClusterSettings,
        *,
        timeout_s: float,
        tasks: TaskGroup,
        must_keep: bool,
    ) -> None:
        self.address = address
        self._settings = settings
        self._timeout_s = timeout_s
        self._tasks = tasks
        self._must_keep = must_keep
        self._connecting = Lock()
        self._connection: RedisConnection | None = None

    def disconnect(self) -> None:
        """Drop the connection: commands under way fail, and the next one connects."""
        if self._connection is not None:
            self._connection.invalidate()

    async def send(
        self,
        command: bytes,
        *words: Word,
        asking: bool = False,
        then: Sequence[bytes] = (),
    ) -> Any:
        """Send a command, whose name has one or two words; return its answer.

        *asking*: send ASKING first, as another node redirected us here. *then* is a second
        command, which runs on the same server and next to it; both answers are returned.

        Raises:
            CallError: There was no answer within the timeout, or it is an error.
        """
        try:
            connection = await self._connected()
            if asking:
                connection.create_request(b"ASKING")
            request = connection.create_request(command, *words)
            if not then:
                return await request
            second = connection.create_request(*then)
            return [await request, await second]
        except CallError:
            raise
        except Exception as error:
            failure = self._failure(error)
            if failure.kind in ("timeout", "readonly"):
                # The connection may be half open, or the name of the server now belongs
                # to another one, which is the master.
                self.disconnect()
            raise failure from error

    async def _connected(self) -> "RedisConnection":
        connection = self._connection
        if connection is not None and connection.usable:
            return connection
        with fail_after(self._timeout_s):
            async with self._connecting:
                connection = self._connection
                if connection is None or not connection.usable:
                    connection = self._connection = await self._connect()
                return connection

    async def _connect(self) -> "RedisConnection":
        from liveness.cluster.transport import RedisConnection

        settings = self._settings
        # In a thread: files may be slow, and a system has many certificates.
        password, context = await to_thread.run_sync(
            _credentials, settings, abandon_on_cancel=True
        )
        # Redis closes a connection without TLS's close_notify.
        tls: dict[str, Any] = {"ssl_context": context, "tls_standard_compatible": False}
        stream = await connect_tcp(*self.address, **tls if context else {})
        connection = RedisConnection(
            stream,
            *self.address,
            stream_timeout=self._timeout_s,
            username=settings.user or None,
            password=password,
            db=settings.database,
        )
        try:
            await self._tasks.start(connection.run)
        except Exception:
            # When we are cancelled coredis raises this, but Cancelled has to go on.
            await checkpoint_if_cancelled()  # noqa: ASYNC120
            raise
        if self._must_keep:
            try:
                await self._check_policy(connection)
            except BaseException:
                connection.invalidate()  # it would stay open
                raise
        return connection

    async def _check_policy(self, connection: "RedisConnection") -> None:
        try:
            found: Any = await connection.create_request(b"INFO", b"memory")
        except Exception as error:
            if self._failure(error).kind != "permission":
                raise
        else:
            _, _, policy = found.partition(b"maxmemory_policy:")
            if policy.startswith(b"allkeys-"):
                why = f"its maxmemory-policy {policy.split()[0].decode()} deletes keys"
                raise CallError("memory", f"Redis at {self.address}: {why}")

    def _failure(self, error: Exception) -> CallError:
        if isinstance(error, StartError):
            return CallError("auth", str(error))
        name, origin = type(error).__name__, _origin(error)
        if name in ("MovedError", "AskError"):
            host, port = error.node_addr  # type: ignore[attr-defined]
            target = Address(host or self.address.host, port)
            message = f"Redis at {self.address}: {target} has this slot"
            return CallError("moving", message, target, is_ask=name == "AskError")
        text = str(origin).partition(_REPEATED)[0] or type(origin).__name__
        kind = KINDS.get(name) or KINDS.get(text.partition(" ")[0])
        if kind is None:  # errors of opening the stream are not from Redis
            is_ours = isinstance(error, OSError | BrokenResourceError | EndOfStream)
            kind = "connection" if is_ours else "other"
        if text.startswith(_REFUSED_INSIDE):
            kind = "permission"
        if isinstance(origin, TimeoutError):
            text = f"no answer within {self._timeout_s:g} s"
        return CallError(kind, f"Redis at {self.address}: {text}")


def _origin(error: BaseException) -> BaseException:
    if isinstance(error, BaseExceptionGroup):
        return _origin(error.exceptions[0])
    return error if error.__cause__ is None else _origin(error.__cause__)


# --- preconditions and credentials ------------------------------------------------------


def check_start(settings: ClusterSettings) -> None:
    """Check coredis, and the files of the password and of TLS.

    Raises:
        StartError: Something is missing or unusable.
    """
    try:
        import coredis.connection  # noqa: F401
    except ImportError:
        raise StartError(
            "presence across hosts needs the package coredis; run "
            "pip install 'liveness-sidecar[sidecar,cluster]', or remove [cluster] from the settings"
        ) from None
    # It logs each attempt that fails, with a traceback; callers have a `CallError` instead.
    logging.getLogger("coredis").setLevel(logging.CRITICAL)
    _credentials(settings)


def _credentials(
    settings: ClusterSettings,
) -> tuple[str | None, ssl.SSLContext | None]:
    if settings.password_file is None:
        return None, _tls_context(settings)
    setting, path = "cluster.password_file", settings.password_file
    data = read_secret(setting, path, "password")
    try:
        password = data.decode().strip("\r\n")
    except UnicodeDecodeError:
        why = "is not UTF-8; put only the password there"
        raise StartError(f"{setting}: {path} {why}") from None
    if not password:
        why = "is empty; put the password of Redis' user there"
        raise StartError(f"{setting}: {path} {why}")
    return password, _tls_context(settings)


def _tls_context(settings: ClusterSettings) -> ssl.SSLContext | None:
    if not settings.has_tls:
        return None
    certificate = settings.tls_cert_file
    name, file = "tls_ca_file", settings.tls_ca_file
    try:
        context = ssl.create_default_context(cafile=file)
        if certificate is not None:
            name, file = "tls_cert_file", certificate
            # With a password, an encrypted key is an error, and OpenSSL does not prompt.
            context.load_cert_chain(certificate, settings.tls_key_file, password="")
    except OSError as error:
        raise StartError(
            f"cluster.{name}: {file} cannot be used ({error.strerror or error}); name "
            "readable files in PEM, and a key that is not encrypted"
        ) from None
    return context
