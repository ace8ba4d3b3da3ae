"""What the tests with running programs share."""
import time


def wait_for(condition, seconds=40):
    """Its first value that is true, asked for every tenth of a second."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s")
