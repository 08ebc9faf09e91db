"""Rare classes, three ways: unweighted, with class weights, and resampled; one list of metrics for all three models."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(34)

BATCH, EPOCHS = 32, 3

features = np.random.normal(size=(800, 10)).astype("float32")
targets = (features[:, 0] + features[:, 1] > 2.0).astype("int32")  # About one in thirteen.
train_x, train_y, val_x, val_y = features[:640], targets[:640], features[640:], targets[640:]
negatives, positives = np.bincount(train_y)

preemption = PreemptionCallback("runs/imbalanced")

METRICS = [
    keras.metrics.BinaryAccuracy(name="accuracy"),
    keras.metrics.FalseNegatives(name="missed"),
    keras.metrics.AUC(name="prc", curve="PR"),
]


def build(bias):
    model = keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(16, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(1, activation="sigmoid", bias_initializer=keras.initializers.Constant(bias)),
        ]
    )
    model.compile(optimizer=keras.optimizers.Adam(0.005), loss="binary_crossentropy", metrics=METRICS)
    return model


def early_stopping():
    return keras.callbacks.EarlyStopping(monitor="val_prc", mode="max", patience=1, restore_best_weights=True)


baseline = build(np.log(positives / negatives))
initial_weights = baseline.get_weights()
baseline.fit(
    train_x,
    train_y,
    batch_size=BATCH,
    epochs=2,
    validation_data=(val_x, val_y),
    callbacks=[preemption],
)
print("Baseline", baseline.evaluate(val_x, val_y, verbose=0, return_dict=True))

weighted = build(0.0)
weighted.set_weights(initial_weights)
weighted.fit(
    train_x,
    train_y,
    batch_size=BATCH,
    epochs=EPOCHS,
    validation_data=(val_x, val_y),
    class_weight={0: 0.5 * len(train_y) / negatives, 1: 0.5 * len(train_y) / positives},
    callbacks=[early_stopping(), preemption],
)
print("Weighted", weighted.evaluate(val_x, val_y, verbose=0, return_dict=True))


def endless(of_class):
    chosen = train_y == of_class
    pairs = tf.data.Dataset.from_tensor_slices((train_x[chosen], train_y[chosen]))
    return pairs.shuffle(len(train_x)).repeat()


both = [endless(0), endless(1)]
balanced = tf.data.Dataset.sample_from_datasets(both, weights=[0.5, 0.5]).batch(BATCH).prefetch(2)
val_ds = tf.data.Dataset.from_tensor_slices((val_x, val_y)).cache().batch(BATCH).prefetch(2)
for _, some in balanced.take(1):
    print(f"Share of the rare class in a batch: {some.numpy().mean():.2f}")

resampled = build(0.0)
resampled.set_weights(initial_weights)
resampled.fit(
    balanced,
    epochs=EPOCHS,
    steps_per_epoch=int(np.ceil(2 * negatives / BATCH)) // 2,
    validation_data=val_ds,
    callbacks=[early_stopping(), preemption],
)
print("Resampled", resampled.evaluate(val_ds, verbose=0, return_dict=True))
