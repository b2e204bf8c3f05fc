"""Random cases against both drivers: `python -m offbeat.testing.torture --runs 500 --seed 0`.

A case is an algorithm with random settings on a random toy fleet. On the virtual clock devices leave, vanish, return
and lose uploads, and the run is killed and resumed through checkpoint files. On a Flower grid in memory, with a clock
of its own, nodes also delay, reorder, duplicate and lose replies, come and go, lie about time and send hostile updates.

After every turn time has not gone back, and the session's invariants hold. At the end no ticket has ended twice,
accounts add up, staleness is within the algorithm's bound, the run has not hung, and no hostile number is in the model.
A run that was killed has the same rows, orders and model, bit for bit, as one that was not (on the virtual clock only:
real devices do not wait for a server). A failing case is shrunk and printed as one command.
"""
