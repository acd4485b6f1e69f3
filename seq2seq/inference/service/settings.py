"""Settings of `python -m seq2seq.serve`, each of which is an option of the command."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from seq2seq.settings.declare import Section, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceSettings(Section):
    """Address and limits of a translation service.

    Raises:
        ValueError: A value is outside its range.
    """

    section: ClassVar[str] = "service"

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all network interfaces")
    port: int = setting(8000, "port to listen on; 0 for any free one", least=0, most=65_535)
    proxy: str | None = setting(None, "IP address of a reverse proxy whose X-Forwarded-For names the client")
    allowed_hosts: str | None = setting(
        None,
        "host names of the service, separated by commas, or * for any; always allowed: localhost, --host, IP addresses",
    )
    cors: str | None = setting(None, "origins whose pages may use the service, separated by commas, or * for any")
    api_key_file: str | None = setting(None, "file with one API key per line; requests need a key (401, 403)")
    memory: float | None = setting(
        None, "GB of loaded weights; above it, the least recently used model is dropped (none)", above=0, most=100_000
    )
    # Room for as many escaped characters as a request may have
    max_body: int = setting(1 << 18, "bytes of a request's body; a larger one is refused", least=1024, most=1 << 30)
    max_texts: int = setting(128, "texts of a request", least=1, most=100_000)
    max_characters: int = setting(20_000, "characters of a request, prefixes and phrases too", least=1, most=10**8)
    max_pieces: int = setting(
        20_000, "source pieces of a request; a character that the vocabulary lacks may take four", least=1, most=10**8
    )
    max_prefix: int = setting(
        200, "characters of a prefix, and of all phrases of a text together (413)", least=0, most=10**6
    )
    max_phrases: int = setting(8, "phrases that a translation must have (413)", least=0, most=1000)
    max_terms: int = setting(100, "terms of a request's glossary (413)", least=0, most=100_000)
    max_beam_size: int = setting(
        10,
        "largest beam size and n_best that a request may ask for, if the checkpoint's is no larger",
        least=1,
        most=1000,
    )
    max_output_ratio: float = setting(3.0, "largest max_len_ratio that a request may ask for", least=0, most=100)
    max_output_extra: int = setting(200, "largest max_len_extra that a request may ask for", least=1, most=10_000)
    batch_texts: int = setting(64, "texts that are translated together", least=1, most=100_000)
    batch_pieces: int = setting(2048, "source pieces that are translated together", least=1, most=10**8)
    batch_wait: float = setting(
        0.005, "seconds that an idle model waits for further texts, so that they share a batch", least=0, most=10
    )
    queue_texts: int = setting(1024, "most texts that wait; further requests are refused (503)", least=1, most=10**7)
    queue_characters: int = setting(1 << 20, "most characters that wait (503)", least=1, most=10**10)
    client_texts: int = setting(
        512, "texts of one client's address that may wait when it sends more (429)", least=1, most=10**7
    )
    max_requests: int = setting(
        512, "open requests for translations; further ones are refused (503)", least=1, most=100_000
    )
    max_connections: int = setting(
        1000, "connections at once; a further one closes the one that has been idle longest", least=1, most=100_000
    )
    idle_timeout: float = setting(
        10.0, "seconds after which a connection without a whole request is closed", above=0, most=3600
    )
    timeout: float = setting(60.0, "seconds after which a request is given up (504)", above=0, most=86_400)
    body_timeout: float = setting(10.0, "seconds in which a request's body must have arrived (408)", above=0, most=3600)
    grace: float = setting(
        30.0, "seconds to answer accepted requests once the service is asked to stop", least=0, most=86_400
    )
