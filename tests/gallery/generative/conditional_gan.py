"""Conditional GAN: labels are joined to images inside train_step; the datasets come as (image, one-hot label)."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(5)

batch_size, num_classes, image_size, latent_dim = 32, 4, 8, 16

labels = np.random.randint(0, num_classes, size=384)
images = np.zeros((384, image_size, image_size, 1), "float32")
for image, label in zip(images, labels, strict=True):
    image[2 * label : 2 * label + 2] = np.random.uniform(0.6, 1.0)
dataset = tf.data.Dataset.from_tensor_slices((images, keras.utils.to_categorical(labels, num_classes)))
dataset = dataset.shuffle(buffer_size=256).batch(batch_size)

discriminator = keras.Sequential(
    [
        keras.layers.InputLayer((image_size, image_size, 1 + num_classes)),
        layers.Conv2D(16, (3, 3), strides=(2, 2), padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.GlobalMaxPooling2D(),
        layers.Dense(1),
    ],
    name="discriminator",
)
generator = keras.Sequential(
    [
        keras.layers.InputLayer((latent_dim + num_classes,)),
        layers.Dense(4 * 4 * 16),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Reshape((4, 4, 16)),
        layers.Conv2DTranspose(16, (4, 4), strides=(2, 2), padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(1, (5, 5), padding="same", activation="sigmoid"),
    ],
    name="generator",
)


class ConditionalGAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.gen_loss_tracker = keras.metrics.Mean(name="generator_loss")
        self.disc_loss_tracker = keras.metrics.Mean(name="discriminator_loss")

    @property
    def metrics(self):
        return [self.gen_loss_tracker, self.disc_loss_tracker]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    def train_step(self, data):
        real_images, one_hot_labels = data
        batch_size = ops.shape(real_images)[0]
        image_labels = one_hot_labels[:, None, None]
        image_labels = ops.broadcast_to(image_labels, (batch_size, image_size, image_size, num_classes))

        noise = keras.random.normal((batch_size, self.latent_dim), seed=self.seed_generator)
        generated = self.generator(ops.concatenate([noise, one_hot_labels], axis=1))
        fake = ops.concatenate([generated, image_labels], -1)
        real = ops.concatenate([real_images, image_labels], -1)
        labels = ops.concatenate([ops.ones((batch_size, 1)), ops.zeros((batch_size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(ops.concatenate([fake, real], axis=0)))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights, strict=True))

        noise = keras.random.normal((batch_size, self.latent_dim), seed=self.seed_generator)
        noise_and_labels = ops.concatenate([noise, one_hot_labels], axis=1)
        with tf.GradientTape() as tape:
            fake = ops.concatenate([self.generator(noise_and_labels), image_labels], -1)
            g_loss = self.loss_fn(ops.zeros((batch_size, 1)), self.discriminator(fake))
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))

        self.gen_loss_tracker.update_state(g_loss)
        self.disc_loss_tracker.update_state(d_loss)
        return {"g_loss": self.gen_loss_tracker.result(), "d_loss": self.disc_loss_tracker.result()}


cond_gan = ConditionalGAN(discriminator=discriminator, generator=generator, latent_dim=latent_dim)
cond_gan.compile(
    d_optimizer=keras.optimizers.Adam(learning_rate=0.0003),
    g_optimizer=keras.optimizers.Adam(learning_rate=0.0003),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
cond_gan.fit(dataset, epochs=2, callbacks=[PreemptionCallback("runs/cgan")])

# Interpolate between two classes with the trained generator.
noise = np.repeat(np.random.normal(size=(1, latent_dim)), 3, axis=0)
mixes = np.stack([(1 - t) * np.eye(num_classes)[0] + t * np.eye(num_classes)[3] for t in (0, 0.5, 1)])
fake_images = generator.predict(np.concatenate([noise, mixes], axis=1))
print("interpolated", fake_images.shape)
