"""Stochastic weight averaging: the last epoch runs with averaged weights, and only measures anew for normalization."""

import keras
import numpy as np
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(35)

CLASSES = 3

labels = np.random.randint(CLASSES, size=400)
images = np.random.normal(size=(400, 10, 10, 1)).astype("float32")
images[np.arange(400), :, 3 * labels] += 1.0  # A bright column tells the class.


class StochasticWeightAveraging(keras.callbacks.Callback):
    """Averages the weights at the ends of epochs, and gives them to the model for the last epoch.

    That is a pass without learning: it gathers the moving statistics of the averaged network.
    """

    def __init__(self, first_epoch, rate):
        super().__init__()
        self.first_epoch = first_epoch
        self.rate = rate

    def on_train_begin(self, logs=None):
        self.average = None
        self.count = 0

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.first_epoch:
            self.model.optimizer.learning_rate = self.rate
        self.last = epoch == self.params["epochs"] - 1
        if self.last:
            self.model.optimizer.learning_rate = 0.0
            self.model.set_weights(self.average)
            for layer in self.normalizations():
                layer.moving_mean.assign(np.zeros(layer.moving_mean.shape))
                layer.moving_variance.assign(np.ones(layer.moving_variance.shape))

    def on_epoch_end(self, epoch, logs=None):
        if self.first_epoch <= epoch and not self.last:
            weights = self.model.get_weights()
            if self.average is None:
                self.average = weights
            else:
                pairs = zip(self.average, weights, strict=True)
                self.average = [(self.count * mean + new) / (self.count + 1) for mean, new in pairs]
            self.count += 1

    def normalizations(self):
        return [layer for layer in self.model.layers if isinstance(layer, layers.BatchNormalization)]


model = keras.Sequential(
    [
        keras.Input((10, 10, 1)),
        layers.Conv2D(8, 3, strides=2, use_bias=False),
        layers.BatchNormalization(momentum=0.8),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(16, use_bias=False),
        layers.BatchNormalization(momentum=0.8),
        layers.ReLU(),
        layers.Dense(CLASSES, activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.SGD(0.1), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.fit(
    images[:320],
    labels[:320],
    batch_size=16,
    epochs=6,
    validation_data=(images[320:], labels[320:]),
    callbacks=[StochasticWeightAveraging(first_epoch=2, rate=0.02), PreemptionCallback("runs/swa")],
)
print("Averaged", model.evaluate(images[320:], labels[320:], return_dict=True))
