"""The settings that environment variables give: `SAFEWRITE_` and the setting's name in capitals.

The one module that imports `pydantic_settings`; `settings.py` imports it when settings are first resolved, so that
`import safewrite` stays light.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError, ValidationInfo, ValidatorFunctionWrapHandler, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict


class _Variables(BaseSettings):
    """One field a setting.  Types only: limits are checked in `settings.py`, the same for every origin."""

    model_config = SettingsConfigDict(env_prefix="SAFEWRITE_", extra="ignore")

    database_url: str | None = None
    namespace: str | None = None
    operation_timeout: str | None = None  # as text: an unusable one is shown and replaced, never an error
    minimum: float | None = None
    reserve_share: float | None = None
    reserve_floor: float | None = None
    lease_margin: float | None = None
    grace: float | None = None
    threads: int | None = None
    busy_timeout: float | None = None
    connect_timeout: float | None = None
    statement_timeout: float | None = None
    idle: float | None = None
    keepalive: float | None = None
    backstop: float | None = None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # No `.env` file or secrets folder that happens to lie in the working directory.
        return (init_settings,)

    @field_validator("*", mode="wrap")
    @classmethod
    def _convert_what_can_be(
        cls, value: object, convert: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> object:
        if info.field_name != "operation_timeout" and isinstance(value, str) and not value.strip():
            return None
        try:
            return convert(value)
        except ValidationError:
            return value  # still text: the check of the setting refuses it, and says what to write


def read_environment(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the settings that `environ` gives, by name, not yet checked.

    A text that cannot be converted comes as it is.  A variable that is empty counts as not set, but for
    `SAFEWRITE_OPERATION_TIMEOUT`, which always comes as its text.
    """
    source = EnvSettingsSource(_Variables)
    source.env_vars = {name.lower(): text for name, text in environ.items()}
    return {name: value for name, value in _Variables(**source()) if value is not None}
