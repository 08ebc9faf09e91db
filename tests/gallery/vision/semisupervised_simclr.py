"""SimCLR: a baseline, contrastive pretraining with two optimizers and nested inputs, finetuning: three fits."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(20)

image_size, image_channels, width, temperature, num_epochs = 12, 3, 16, 0.1, 2
unlabeled_batch_size, labeled_batch_size = 24, 8


def load(count):
    labels = np.random.randint(0, 3, size=count)
    images = np.random.uniform(0, 0.4, size=(count, image_size, image_size, image_channels))
    images[np.arange(count), ..., labels] += 0.4
    return tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels))


unlabeled_train_dataset = load(240).shuffle(buffer_size=10 * unlabeled_batch_size).batch(unlabeled_batch_size)
labeled_train_dataset = load(80).shuffle(buffer_size=10 * labeled_batch_size).batch(labeled_batch_size)
test_dataset = load(64).batch(16).prefetch(buffer_size=tf.data.AUTOTUNE)
# Labeled and unlabeled datasets are zipped together
train_dataset = tf.data.Dataset.zip((unlabeled_train_dataset, labeled_train_dataset))
train_dataset = train_dataset.prefetch(buffer_size=tf.data.AUTOTUNE)


class RandomColorAffine(layers.Layer):
    """Distorts the color distributions of images"""

    def __init__(self, brightness=0, **kwargs):
        super().__init__(**kwargs)
        self.brightness = brightness
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, images, training=True):
        if training:
            batch_size = ops.shape(images)[0]
            images = images * keras.random.uniform(
                (batch_size, 1, 1, 1), 1 - self.brightness, 1 + self.brightness, seed=self.seed_generator
            )
        return images


def get_augmenter(min_area, brightness):
    zoom_factor = 1.0 - np.sqrt(min_area)
    return keras.Sequential(
        [
            layers.RandomFlip("horizontal"),
            layers.RandomTranslation(zoom_factor / 2, zoom_factor / 2),
            RandomColorAffine(brightness),
        ]
    )


def get_encoder():
    return keras.Sequential(
        [
            layers.Conv2D(width, kernel_size=3, strides=2, activation="relu"),
            layers.Conv2D(width, kernel_size=3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(width, activation="relu"),
        ],
        name="encoder",
    )


preemption = PreemptionCallback("runs/simclr")

# Baseline supervised training with random initialization
baseline_model = keras.Sequential(
    [get_augmenter(min_area=0.75, brightness=0.3), get_encoder(), layers.Dense(3)], name="baseline_model"
)
baseline_model.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
baseline_model.fit(
    labeled_train_dataset, epochs=num_epochs, validation_data=test_dataset, callbacks=[preemption]
)


class ContrastiveModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.contrastive_augmenter = get_augmenter(min_area=0.25, brightness=0.6)
        self.classification_augmenter = get_augmenter(min_area=0.75, brightness=0.3)
        self.encoder = get_encoder()
        self.projection_head = keras.Sequential(
            [keras.Input(shape=(width,)), layers.Dense(width, activation="relu"), layers.Dense(width)]
        )
        self.linear_probe = keras.Sequential([layers.Input(shape=(width,)), layers.Dense(3)])

    def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
        super().compile(**kwargs)
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.contrastive_loss_tracker = keras.metrics.Mean(name="c_loss")
        self.contrastive_accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
        self.probe_loss_tracker = keras.metrics.Mean(name="p_loss")
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self):
        return [
            self.contrastive_loss_tracker,
            self.contrastive_accuracy,
            self.probe_loss_tracker,
            self.probe_accuracy,
        ]

    def contrastive_loss(self, projections_1, projections_2):
        projections_1 = ops.normalize(projections_1, axis=1)
        projections_2 = ops.normalize(projections_2, axis=1)
        similarities = ops.matmul(projections_1, ops.transpose(projections_2)) / temperature
        contrastive_labels = ops.arange(ops.shape(projections_1)[0])
        self.contrastive_accuracy.update_state(contrastive_labels, similarities)
        self.contrastive_accuracy.update_state(contrastive_labels, ops.transpose(similarities))
        loss = keras.losses.sparse_categorical_crossentropy
        loss_1_2 = loss(contrastive_labels, similarities, from_logits=True)
        loss_2_1 = loss(contrastive_labels, ops.transpose(similarities), from_logits=True)
        return (loss_1_2 + loss_2_1) / 2

    def train_step(self, data):
        (unlabeled_images, _), (labeled_images, labels) = data
        images = ops.concatenate((unlabeled_images, labeled_images), axis=0)
        augmented_images_1 = self.contrastive_augmenter(images, training=True)
        augmented_images_2 = self.contrastive_augmenter(images, training=True)
        with tf.GradientTape() as tape:
            projections_1 = self.projection_head(
                self.encoder(augmented_images_1, training=True), training=True
            )
            projections_2 = self.projection_head(
                self.encoder(augmented_images_2, training=True), training=True
            )
            contrastive_loss = self.contrastive_loss(projections_1, projections_2)
        weights = self.encoder.trainable_weights + self.projection_head.trainable_weights
        gradients = tape.gradient(contrastive_loss, weights)
        self.contrastive_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.contrastive_loss_tracker.update_state(contrastive_loss)

        # Labels are only used in evalutation for an on-the-fly logistic regression
        preprocessed_images = self.classification_augmenter(labeled_images, training=True)
        with tf.GradientTape() as tape:
            features = self.encoder(preprocessed_images, training=False)
            class_logits = self.linear_probe(features, training=True)
            probe_loss = self.probe_loss(labels, class_logits)
        gradients = tape.gradient(probe_loss, self.linear_probe.trainable_weights)
        self.probe_optimizer.apply_gradients(zip(gradients, self.linear_probe.trainable_weights, strict=True))
        self.probe_loss_tracker.update_state(probe_loss)
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        labeled_images, labels = data
        features = self.encoder(self.classification_augmenter(labeled_images, training=False), training=False)
        class_logits = self.linear_probe(features, training=False)
        self.probe_loss_tracker.update_state(self.probe_loss(labels, class_logits))
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics[2:]}


pretraining_model = ContrastiveModel()
pretraining_model.compile(
    contrastive_optimizer=keras.optimizers.Adam(), probe_optimizer=keras.optimizers.Adam()
)
pretraining_model.fit(train_dataset, epochs=num_epochs, validation_data=test_dataset, callbacks=[preemption])

# Supervised finetuning of the pretrained encoder
finetuning_model = keras.Sequential(
    [get_augmenter(min_area=0.75, brightness=0.3), pretraining_model.encoder, layers.Dense(3)],
    name="finetuning_model",
)
finetuning_model.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
finetuning_model.fit(
    labeled_train_dataset, epochs=num_epochs, validation_data=test_dataset, callbacks=[preemption]
)
