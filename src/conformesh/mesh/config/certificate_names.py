"""Names of devices, and names in certificates: a device and the number of its certificate.

The first certificate of a device has the name of the device, the second NAME~2, and so on. A roster states the lowest
number that neighbours accept; they accept that one and the next 15. So a renewed certificate needs no new roster, and a
new roster shuts out a stolen certificate while its device keeps its name. This module imports nothing heavy: a node
imports it.
"""

from __future__ import annotations

import re

# Numbers that are accepted at a time. A link lists all accepted names when it is opened, so there must be an end.
ACCEPTED_NUMBERS = 16
NUMBER_MARK = "~"  # not allowed in names of devices, so that NAME~2 cannot be another device
# X.509 limits a common name to 64 characters (RFC 5280, ub-common-name), which must also hold for NAME~2, NAME~3 and so
# on. "~99999" leaves room for a renewal every day for 270 years.
LONGEST_NAME = 64 - len("~99999")
RESERVED_NAMES = ("ca", "revoked")  # folders of a mesh beside those of the devices


def check_device_name(name: str) -> None:
    """Raise unless a name suits a folder, every certificate of the device, and a part of a key on the wire."""
    if len(name) > LONGEST_NAME:
        raise ValueError(
            f"device name {name!r} has {len(name)} characters; at most {LONGEST_NAME} are allowed, so that its renewed "
            "certificates, NAME~2 and so on, fit the 64 characters of a name in a certificate; choose a shorter name"
        )
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise ValueError(
            f"device name {name!r} must be 1 to {LONGEST_NAME} letters, digits, '.', '_' or '-', beginning and ending "
            "with a letter or digit"
        )
    if name.lower() in RESERVED_NAMES:
        raise ValueError(f"device name {name!r} is the name of another folder of a mesh; choose another")


def certificate_name(device: str, number: int) -> str:
    """Return the common name of a device's certificate of that number.

    >>> certificate_name("pi", 1), certificate_name("pi", 3)
    ('pi', 'pi~3')
    """
    return device if number == 1 else f"{device}{NUMBER_MARK}{number}"


def parse_certificate_name(shown: str) -> tuple[str, int]:
    """Return the device and the number of the certificate that a common name states; 0 if it has another form.

    >>> parse_certificate_name("pi"), parse_certificate_name("pi~3"), parse_certificate_name("pi~03")
    (('pi', 1), ('pi', 3), ('pi~03', 0))
    """
    device, mark, number = shown.partition(NUMBER_MARK)
    if not mark:
        return shown, 1
    # "~1" and "~03" are refused: every certificate has exactly one name.
    return (device, int(number)) if re.fullmatch(r"[2-9]|[1-9][0-9]{1,8}", number) else (shown, 0)


def accepted_names(device: str, lowest: int = 1) -> list[str]:
    """Return the common names under which neighbours accept a device."""
    return [certificate_name(device, number) for number in range(lowest, lowest + ACCEPTED_NUMBERS)]


def why_not_accepted(shown: str, device: str, lowest: int = 1) -> str:
    """Return why neighbours do not accept a certificate's name for a device, or an empty string.

    >>> why_not_accepted("pi~2", "pi", 3)
    "names 'pi~2', and of 'pi' certificates from number 3 on are let in; an older one was revoked"
    """
    name, number = parse_certificate_name(shown)
    if name != device or not number:
        return f"names {shown!r}, but this device is {device!r}"
    let_in = f"names {shown!r}, and of {device!r} certificates from number {lowest} on are let in"
    if number < lowest:
        return f"{let_in}; an older one was revoked"
    if number >= lowest + ACCEPTED_NUMBERS:
        return f"{let_in}, {ACCEPTED_NUMBERS} of them; this needs a newer roster"
    return ""
