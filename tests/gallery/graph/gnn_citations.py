"""Node classification with a graph neural network: batches of node numbers, the graph inside the model."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(33)

num_nodes, num_classes = 240, 3
hidden_units, learning_rate, dropout_rate, batch_size, num_epochs = [16, 16], 0.01, 0.5, 16, 3

# Papers cite papers of their own subject more often, and use its words more often.
subjects = np.random.randint(0, num_classes, size=num_nodes)
node_features = tf.constant(
    (np.random.random((num_nodes, 24)) < 0.1 + 0.2 * (np.arange(24) % 3 == subjects[:, None])), tf.float32
)
cited = [(a, b) for a, b in np.random.randint(0, num_nodes, size=(3000, 2)) if subjects[a] == subjects[b]]
edges = np.array(cited).T
edge_weights = tf.ones(shape=edges.shape[1])
graph_info = (node_features, edges, edge_weights)

random_selection = np.random.rand(num_nodes) <= 0.6
x_train, y_train = np.flatnonzero(random_selection), subjects[random_selection]
x_test, y_test = np.flatnonzero(~random_selection), subjects[~random_selection]


def create_ffn(hidden_units, dropout_rate, name=None):
    fnn_layers = []
    for units in hidden_units:
        fnn_layers.append(layers.BatchNormalization())
        fnn_layers.append(layers.Dropout(dropout_rate))
        fnn_layers.append(layers.Dense(units, activation="gelu"))
    return keras.Sequential(fnn_layers, name=name)


class GraphConvLayer(layers.Layer):
    def __init__(self, hidden_units, dropout_rate=0.2, **kwargs):
        super().__init__(**kwargs)
        self.ffn_prepare = create_ffn(hidden_units, dropout_rate)
        self.update_fn = create_ffn(hidden_units, dropout_rate)

    def aggregate(self, node_indices, neighbour_messages, node_repesentations):
        # node_indices shape is [num_edges].
        return tf.math.unsorted_segment_mean(
            neighbour_messages, node_indices, num_segments=node_repesentations.shape[0]
        )

    def call(self, inputs):
        node_repesentations, edges, edge_weights = inputs
        node_indices, neighbour_indices = edges[0], edges[1]
        neighbour_repesentations = tf.gather(node_repesentations, neighbour_indices)
        messages = self.ffn_prepare(neighbour_repesentations) * tf.expand_dims(edge_weights, -1)
        aggregated = self.aggregate(node_indices, messages, node_repesentations)
        node_embeddings = self.update_fn(tf.concat([node_repesentations, aggregated], axis=1))
        return tf.nn.l2_normalize(node_embeddings, axis=-1)


class GNNNodeClassifier(keras.Model):
    def __init__(self, graph_info, num_classes, hidden_units, dropout_rate=0.2, *args, **kwargs):
        super().__init__(*args, **kwargs)
        node_features, edges, edge_weights = graph_info
        self.node_features = node_features
        self.edges = edges
        # Scale edge_weights to sum to 1.
        self.edge_weights = edge_weights / tf.math.reduce_sum(edge_weights)
        self.preprocess = create_ffn(hidden_units, dropout_rate, name="preprocess")
        self.conv1 = GraphConvLayer(hidden_units, dropout_rate, name="graph_conv1")
        self.conv2 = GraphConvLayer(hidden_units, dropout_rate, name="graph_conv2")
        self.postprocess = create_ffn(hidden_units, dropout_rate, name="postprocess")
        self.compute_logits = layers.Dense(units=num_classes, name="logits")

    def call(self, input_node_indices):
        x = self.preprocess(self.node_features)
        x = self.conv1((x, self.edges, self.edge_weights)) + x
        x = self.conv2((x, self.edges, self.edge_weights)) + x
        x = self.postprocess(x)
        # Fetch node embeddings for the input node_indices.
        return self.compute_logits(tf.gather(x, input_node_indices))


gnn_model = GNNNodeClassifier(graph_info, num_classes, hidden_units, dropout_rate, name="gnn_model")
gnn_model.compile(
    optimizer=keras.optimizers.Adam(learning_rate),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
early_stopping = keras.callbacks.EarlyStopping(monitor="val_acc", patience=50, restore_best_weights=True)
history = gnn_model.fit(
    x=x_train,
    y=y_train,
    epochs=num_epochs,
    batch_size=batch_size,
    validation_split=0.15,
    callbacks=[early_stopping, PreemptionCallback("runs/gnn")],
)
_, test_accuracy = gnn_model.evaluate(x=x_test, y=y_test, verbose=0)
print(f"Test accuracy: {round(test_accuracy * 100, 2)}%")
