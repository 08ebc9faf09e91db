"""Progressive unfreezing: a network is compiled with all but its head frozen, and a callback thaws it by epochs."""

import keras
import numpy as np
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(31)

CLASSES, EPOCHS = 4, 4

labels = np.random.randint(CLASSES, size=320)
images = np.random.normal(size=(320, 12, 12, 3)).astype("float32")
images[np.arange(320), 3 * labels] += 1.5  # A bright row tells the class.


class Thaw(keras.callbacks.Callback):
    """Makes the frozen blocks trainable, the last one first, some more with each epoch."""

    def __init__(self, blocks, per_epoch=1):
        super().__init__()
        self.blocks = blocks
        self.per_epoch = per_epoch

    def on_epoch_begin(self, epoch, logs=None):
        thawed = self.blocks[-(epoch + 1) * self.per_epoch :]
        for name in thawed:
            self.model.get_layer(name).trainable = True
        print("Trainable besides the head:", ", ".join(thawed))


model = keras.Sequential(
    [
        keras.Input((12, 12, 3)),
        layers.Conv2D(8, 3, activation="relu", name="edges"),
        layers.Conv2D(8, 3, strides=2, activation="relu", name="textures"),
        layers.Conv2D(16, 3, activation="relu", name="parts"),
        layers.Flatten(),
        layers.Dense(CLASSES, name="head"),
    ]
)
frozen = ["edges", "textures", "parts"]
for name in frozen:
    model.get_layer(name).trainable = False
model.compile(
    optimizer=keras.optimizers.SGD(0.02, momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    images,
    labels,
    batch_size=16,
    epochs=EPOCHS,
    validation_split=0.2,
    callbacks=[Thaw(frozen), PreemptionCallback("runs/thaw")],
)
