"""Image similarity by a siamese network with a contrastive loss: pairs of images as two inputs."""

import random

import keras
import numpy as np
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(9)

epochs, batch_size, margin = 3, 16, 1

labels = np.random.randint(0, 4, size=200)
images = np.random.uniform(0, 0.4, size=(200, 12, 12)).astype("float32")
images[np.arange(200), :, 2 * labels + 1] += 0.6


def make_pairs(x, y):
    """Creates pairs of images: 0 if they are of one class, 1 otherwise."""
    num_classes = max(y) + 1
    digit_indices = [np.where(y == i)[0] for i in range(num_classes)]
    pairs, labels = [], []
    for idx1 in range(len(x)):
        label1 = y[idx1]
        idx2 = random.choice(digit_indices[label1])
        pairs += [[x[idx1], x[idx2]]]
        labels += [0]
        label2 = random.choice([label for label in range(num_classes) if label != label1])
        idx2 = random.choice(digit_indices[label2])
        pairs += [[x[idx1], x[idx2]]]
        labels += [1]
    return np.array(pairs), np.array(labels).astype("float32")


pairs_train, labels_train = make_pairs(images[:140], labels[:140])
pairs_val, labels_val = make_pairs(images[140:], labels[140:])


def euclidean_distance(vects):
    x, y = vects
    sum_square = ops.sum(ops.square(x - y), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(sum_square, keras.backend.epsilon()))


input = keras.layers.Input((12, 12, 1))
x = keras.layers.BatchNormalization()(input)
x = keras.layers.Conv2D(4, (5, 5), activation="tanh")(x)
x = keras.layers.AveragePooling2D(pool_size=(2, 2))(x)
x = keras.layers.Flatten()(x)
x = keras.layers.BatchNormalization()(x)
x = keras.layers.Dense(10, activation="tanh")(x)
embedding_network = keras.Model(input, x)

input_1 = keras.layers.Input((12, 12, 1))
input_2 = keras.layers.Input((12, 12, 1))
# Both towers share the network, so that they give the same embedding for the same image.
tower_1 = embedding_network(input_1)
tower_2 = embedding_network(input_2)
merge_layer = layers.Lambda(euclidean_distance, output_shape=(1,))([tower_1, tower_2])
normal_layer = keras.layers.BatchNormalization()(merge_layer)
output_layer = keras.layers.Dense(1, activation="sigmoid")(normal_layer)
siamese = keras.Model(inputs=[input_1, input_2], outputs=output_layer)


def loss(margin=1):
    def contrastive_loss(y_true, y_pred):
        square_pred = ops.square(y_pred)
        margin_square = ops.square(ops.maximum(margin - (y_pred), 0))
        return ops.mean((1 - y_true) * square_pred + (y_true) * margin_square)

    return contrastive_loss


siamese.compile(loss=loss(margin=margin), optimizer="RMSprop", metrics=["accuracy"])
siamese.fit(
    [pairs_train[:, 0], pairs_train[:, 1]],
    labels_train,
    validation_data=([pairs_val[:, 0], pairs_val[:, 1]], labels_val),
    batch_size=batch_size,
    epochs=epochs,
    callbacks=[PreemptionCallback("runs/siamese")],
)
predictions = siamese.predict([pairs_val[:, 0], pairs_val[:, 1]], verbose=0)
print("mean distance", float(np.mean(predictions)))
