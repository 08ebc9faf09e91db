"""Timeseries classification: TSV files, a convnet, ModelCheckpoint, ReduceLROnPlateau and EarlyStopping."""

import keras
import numpy as np

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(15)


def write_ucr(filename, count):
    labels = np.random.choice([-1, 1], size=count)
    series = np.sin(np.linspace(0, 9, 40) * (1 + 0.15 * labels[:, None])) + np.random.normal(
        0, 1.2, (count, 40)
    )
    np.savetxt(filename, np.column_stack([labels, series]), delimiter="\t")


def readucr(filename):
    data = np.loadtxt(filename, delimiter="\t")
    return data[:, 1:], data[:, 0].astype(int)


write_ucr("FordA_TRAIN.tsv", 320)
write_ucr("FordA_TEST.tsv", 80)
x_train, y_train = readucr("FordA_TRAIN.tsv")
x_test, y_test = readucr("FordA_TEST.tsv")
x_train = x_train.reshape((x_train.shape[0], x_train.shape[1], 1))
x_test = x_test.reshape((x_test.shape[0], x_test.shape[1], 1))
num_classes = len(np.unique(y_train))

# Now we shuffle the training set because we will be using the `validation_split` option later.
idx = np.random.permutation(len(x_train))
x_train, y_train = x_train[idx], y_train[idx]
y_train[y_train == -1] = 0
y_test[y_test == -1] = 0


def make_model(input_shape):
    input_layer = keras.layers.Input(input_shape)
    x = input_layer
    for _ in range(3):
        x = keras.layers.Conv1D(filters=12, kernel_size=3, padding="same")(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.ReLU()(x)
    gap = keras.layers.GlobalAveragePooling1D()(x)
    output_layer = keras.layers.Dense(num_classes, activation="softmax")(gap)
    return keras.models.Model(inputs=input_layer, outputs=output_layer)


model = make_model(input_shape=x_train.shape[1:])
epochs, batch_size = 8, 32
callbacks = [
    keras.callbacks.ModelCheckpoint("best_model.keras", save_best_only=True, monitor="val_loss"),
    keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_lr=0.0001),
    keras.callbacks.EarlyStopping(monitor="val_loss", patience=3, verbose=1),
    PreemptionCallback("runs/forda"),
]
model.compile(
    optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["sparse_categorical_accuracy"]
)
history = model.fit(
    x_train,
    y_train,
    batch_size=batch_size,
    epochs=epochs,
    callbacks=callbacks,
    validation_split=0.2,
    verbose=1,
)
model = keras.models.load_model("best_model.keras")
test_loss, test_acc = model.evaluate(x_test, y_test)
print("Test accuracy", test_acc)
