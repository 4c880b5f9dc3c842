"""The message API with PyTorch, as in Flower's quickstart."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from torchquick import task

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = task.Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader, _ = task.load_data(
        context.node_config["partition-id"],
        context.node_config["num-partitions"],
        context.run_config["batch-size"],
    )
    epochs, lr = context.run_config["local-epochs"], msg.content["config"]["lr"]
    loss = task.train(model, loader, epochs, lr)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = task.Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, loader = task.load_data(
        context.node_config["partition-id"],
        context.node_config["num-partitions"],
        context.run_config["batch-size"],
    )
    loss, accuracy = task.test(model, loader)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
