"""The policies of offbeat as a strategy of Flower, over client apps that know nothing of offbeat.

`offbeat.flower.Async` stands in the place of `FedAvg(...)` in a ServerApp; the ClientApp stays as it is. There is no
second driver: the run is one of `flower.server.driver`, with the session, the deadlines and rests, the checks, the
record, the checkpoints and the run directory of every other real run. What is different is in this folder.

    strategy.py    Async: Flower's face of it, settings, what is refused before anything starts, the result
    run.py         the driver, with evaluation on the nodes beside the training
    records.py     the translator: an order becomes Flower's `arrays` and `config`, a reply becomes an update
    arrays.py      a model of named arrays of any type as one flat float32 vector, and back
    evaluation.py  evaluation on the nodes: who is asked, what became of it
    server.py      AsyncServer: the same for projects from before the message API, whose clients fit and evaluate
    fit_records.py their translator
    needs.py       which policies a client app of Flower's can work for, found out by a dry run

An order is one message and its reply: Flower's app trains in one piece, so there are no legs, no questions and no
notices. Nobody is greeted: a node that is connected is a device, with a number of our own, and holds one sample as far
as a policy can know in advance (`view.samples`); what its replies say (`num-examples`) is the weight of its updates.

The arrays of a model keep their names, order, shapes and types:

- Arrays of floating point numbers are mixed in float32, whatever their own type, and sent in their own type.
- Arrays of integers and booleans (counters) cannot be mixed: a version has those of the last upload that went into it.
- A reply whose arrays differ in name, shape or type from those that were sent, or are not finite, is refused.

Time is the grid's (`flower.server.transport`): the wall clock, or a virtual one.
"""
