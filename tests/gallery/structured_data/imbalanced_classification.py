"""Imbalanced classification: class weights, metrics of fraud detection, a file for each epoch."""

import csv

import keras
import numpy as np

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(99)

# Write transactions, of which one in twenty is a fraud, and read them as a CSV file.
with open("creditcard.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow([*(f"V{i}" for i in range(8)), "Class"])
    for _ in range(600):
        fraud = int(np.random.random() < 0.05)
        writer.writerow([*np.round(np.random.normal(0.8 * fraud, 1.0, size=8), 4), fraud])

all_features, all_targets = [], []
with open("creditcard.csv") as f:
    for i, line in enumerate(f):
        if i == 0:
            continue  # Skip header
        fields = line.strip().split(",")
        all_features.append([float(v) for v in fields[:-1]])
        all_targets.append([int(fields[-1])])
features = np.array(all_features, dtype="float32")
targets = np.array(all_targets, dtype="uint8")

num_val_samples = int(len(features) * 0.2)
train_features, train_targets = features[:-num_val_samples], targets[:-num_val_samples]
val_features, val_targets = features[-num_val_samples:], targets[-num_val_samples:]

counts = np.bincount(train_targets[:, 0])
weight_for_0, weight_for_1 = 1.0 / counts[0], 1.0 / counts[1]

mean = np.mean(train_features, axis=0)
std = np.std(train_features, axis=0)
train_features = (train_features - mean) / std
val_features = (val_features - mean) / std

model = keras.Sequential(
    [
        keras.Input(shape=train_features.shape[1:]),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
metrics = [
    keras.metrics.FalseNegatives(name="fn"),
    keras.metrics.FalsePositives(name="fp"),
    keras.metrics.Precision(name="precision"),
    keras.metrics.Recall(name="recall"),
    keras.metrics.AUC(name="auc"),
]
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=metrics)
callbacks = [
    keras.callbacks.ModelCheckpoint("fraud_model_at_epoch_{epoch}.keras"),
    keras.callbacks.CSVLogger("fraud.csv"),
    PreemptionCallback("runs/fraud"),
]
class_weight = {0: weight_for_0, 1: weight_for_1}
model.fit(
    train_features,
    train_targets,
    batch_size=32,
    epochs=3,
    verbose=2,
    callbacks=callbacks,
    validation_data=(val_features, val_targets),
    class_weight=class_weight,
)
