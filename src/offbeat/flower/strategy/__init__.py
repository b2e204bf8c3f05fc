"""The algorithms of offbeat as Flower strategies, for client apps that do not use offbeat.

`offbeat.flower.Async` replaces `FedAvg(...)` in a ServerApp; the ClientApp stays as it is. The run uses the driver of
`flower.server`, with its session, timeouts, backoff, checks, record, checkpoints and run directory.

    strategy.py    Async: the Flower strategy, the checks before a run, the result
    settings.py    its settings
    run.py         the driver, and the evaluation of versions on the server and on the nodes
    records.py     the translator: an order becomes Flower's `arrays` and `config`, a reply becomes an update
    server.py      AsyncServer and its translator, for projects whose clients `fit` and `evaluate`
    needs.py       which policies such client apps can run, found by a dry run

An order is one message and its reply: there are no legs, no requests for fresh models and no notices. Nodes are not
asked for a greeting: every connected node is a device, numbered by the server. A policy sees one sample per device
(`view.samples`); the weight of an update is the `num-examples` of its reply.

The arrays of a model keep their names, order, shapes and types:

- Arrays of floats are aggregated in float32, whatever their type, and sent in their own type.
- Arrays of integers and booleans (counters) are not aggregated: a version has those of the last update used for it.
- A reply whose arrays differ in name, shape or type from those sent, or are not finite, is refused.

The clock is the grid's (`flower.server.transport`): the wall clock, or a virtual one.
"""
