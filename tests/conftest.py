"""What all tests share."""

import signal

# A shell that starts a job in the background has it ignore Ctrl-C, and children inherit that; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
