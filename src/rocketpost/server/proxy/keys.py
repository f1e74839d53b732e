"""The certificate of the gRPC port: files, the broker's own, or one that is made up."""

from __future__ import annotations

import logging
from dataclasses import replace

from rocketpost.errors import ConfigError
from rocketpost.proxy.port.credentials import CertificateFiles, CredentialSource, Pem
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.server.secure.authority import Authority
from rocketpost.server.settings.tls import TlsSettings
from rocketpost.transport.entrance import TlsMode
from rocketpost.transport.tls_contexts import KeyPair, ServerTls

logger = logging.getLogger(__name__)


def choose_keys_blocking(config: ProxyConfig, host: str) -> CredentialSource | None:
    """Return the certificate of the port; None if it is plain.

    Args:
        config: The settings of the port.
        host: The address at which clients reach it.

    Raises:
        ConfigError: The settings ask for TLS, but there is no certificate.
    """
    if config.tls_mode is TlsMode.DISABLED:
        return None
    if config.tls_certificate:
        keys = KeyPair(
            certificate=config.tls_certificate,
            key=config.tls_key,
            password=config.tls_key_password,
        )
        return CertificateFiles(ServerTls(keys=keys))
    if not config.tls_test_mode:
        raise ConfigError(
            f"tlsServerMode={config.tls_mode.value} needs a certificate: set tlsCertPath and "
            "tlsKeyPath, or tlsServerMode to disabled"
        )
    try:
        hosts = dict.fromkeys(("localhost", "127.0.0.1", host))
        issued = Authority.make("rocketpost test").issue("localhost", hosts=hosts)
    except ConfigError as error:
        if config.tls_mode is TlsMode.ENFORCING:
            raise
        logger.warning("the gRPC port is plain: reason=%s", error)
        return None
    return Pem(issued.key, issued.certificate)


def with_broker_tls(
    config: ProxyConfig, broker: TlsSettings, host: str
) -> tuple[ProxyConfig, CredentialSource | None]:
    """Return the settings and the certificate of a port in a broker's process.

    A broker with a certificate lends it to a port that has none of its own. Such a port is no less
    strict than the broker's: if that refuses plain connections, so does this.

    Raises:
        ConfigError: As in :func:`choose_keys_blocking`.
    """
    if broker.mode is TlsMode.ENFORCING and config.tls_mode is TlsMode.PERMISSIVE:
        config = replace(config, tls_mode=TlsMode.ENFORCING)
    is_lent = broker.server is not None and not config.tls_certificate
    if is_lent and config.tls_mode is not TlsMode.DISABLED:
        assert broker.server is not None
        return config, CertificateFiles(broker.server)
    return config, choose_keys_blocking(config, host)
