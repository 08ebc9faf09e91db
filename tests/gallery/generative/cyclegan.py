"""CycleGAN: two generators, two discriminators, four optimizers, five losses; zipped unpaired datasets."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(31)

size = (12, 12, 3)
autotune = tf.data.AUTOTUNE


def normalize_img(img):
    return ops.cast(img, dtype="float32") / 127.5 - 1.0


# Reddish and bluish noise stand in for horses and zebras.
reddish = np.random.randint(0, 255, size=(96, *size)) * np.array([1.0, 0.4, 0.4])
bluish = np.random.randint(0, 255, size=(96, *size)) * np.array([0.4, 0.4, 1.0])
horses, zebras = tf.data.Dataset.from_tensor_slices(reddish), tf.data.Dataset.from_tensor_slices(bluish)
train_horses = horses.map(normalize_img, num_parallel_calls=autotune).cache().shuffle(96).batch(8)
train_zebras = zebras.map(normalize_img, num_parallel_calls=autotune).cache().shuffle(96).batch(8)

kernel_init = keras.initializers.RandomNormal(mean=0.0, stddev=0.02)


class ReflectionPadding2D(layers.Layer):
    def __init__(self, padding=(1, 1), **kwargs):
        self.padding = tuple(padding)
        super().__init__(**kwargs)

    def call(self, input_tensor, mask=None):
        padding_width, padding_height = self.padding
        paddings = [[0, 0], [padding_height, padding_height], [padding_width, padding_width], [0, 0]]
        return ops.pad(input_tensor, paddings, mode="reflect")


def residual_block(x):
    dim = x.shape[-1]
    input_tensor = x
    x = ReflectionPadding2D()(input_tensor)
    x = layers.Conv2D(dim, (3, 3), kernel_initializer=kernel_init, padding="valid", use_bias=False)(x)
    x = layers.GroupNormalization(groups=1)(x)
    x = layers.Activation("relu")(x)
    return layers.add([input_tensor, x])


def get_generator(name):
    img_input = layers.Input(shape=size)
    x = layers.Conv2D(8, (3, 3), padding="same", kernel_initializer=kernel_init)(img_input)
    x = residual_block(x)
    x = residual_block(x)
    x = layers.Conv2D(3, (3, 3), padding="same")(x)
    return keras.models.Model(img_input, layers.Activation("tanh")(x), name=name)


def get_discriminator(name):
    img_input = layers.Input(shape=size)
    x = layers.Conv2D(8, (4, 4), strides=(2, 2), padding="same", kernel_initializer=kernel_init)(img_input)
    x = layers.LeakyReLU(0.2)(x)
    x = layers.Conv2D(1, (4, 4), padding="same", kernel_initializer=kernel_init)(x)
    return keras.models.Model(inputs=img_input, outputs=x, name=name)


class CycleGan(keras.Model):
    def __init__(self, generator_G, generator_F, discriminator_X, discriminator_Y, lambda_cycle=10.0):
        super().__init__()
        self.gen_G = generator_G
        self.gen_F = generator_F
        self.disc_X = discriminator_X
        self.disc_Y = discriminator_Y
        self.lambda_cycle = lambda_cycle
        self.lambda_identity = 0.5

    def compile(
        self, gen_G_optimizer, gen_F_optimizer, disc_X_optimizer, disc_Y_optimizer, gen_loss, disc_loss
    ):
        super().compile()
        self.gen_G_optimizer = gen_G_optimizer
        self.gen_F_optimizer = gen_F_optimizer
        self.disc_X_optimizer = disc_X_optimizer
        self.disc_Y_optimizer = disc_Y_optimizer
        self.generator_loss_fn = gen_loss
        self.discriminator_loss_fn = disc_loss
        self.cycle_loss_fn = keras.losses.MeanAbsoluteError()
        self.identity_loss_fn = keras.losses.MeanAbsoluteError()

    def train_step(self, batch_data):
        real_x, real_y = batch_data
        with tf.GradientTape(persistent=True) as tape:
            fake_y = self.gen_G(real_x, training=True)
            fake_x = self.gen_F(real_y, training=True)
            cycled_x = self.gen_F(fake_y, training=True)
            cycled_y = self.gen_G(fake_x, training=True)
            same_x = self.gen_F(real_x, training=True)
            same_y = self.gen_G(real_y, training=True)
            disc_real_x = self.disc_X(real_x, training=True)
            disc_fake_x = self.disc_X(fake_x, training=True)
            disc_real_y = self.disc_Y(real_y, training=True)
            disc_fake_y = self.disc_Y(fake_y, training=True)

            total_loss_G = (
                self.generator_loss_fn(disc_fake_y)
                + self.cycle_loss_fn(real_y, cycled_y) * self.lambda_cycle
                + self.identity_loss_fn(real_y, same_y) * self.lambda_cycle * self.lambda_identity
            )
            total_loss_F = (
                self.generator_loss_fn(disc_fake_x)
                + self.cycle_loss_fn(real_x, cycled_x) * self.lambda_cycle
                + self.identity_loss_fn(real_x, same_x) * self.lambda_cycle * self.lambda_identity
            )
            disc_X_loss = self.discriminator_loss_fn(disc_real_x, disc_fake_x)
            disc_Y_loss = self.discriminator_loss_fn(disc_real_y, disc_fake_y)

        for loss, network, optimizer in (
            (total_loss_G, self.gen_G, self.gen_G_optimizer),
            (total_loss_F, self.gen_F, self.gen_F_optimizer),
            (disc_X_loss, self.disc_X, self.disc_X_optimizer),
            (disc_Y_loss, self.disc_Y, self.disc_Y_optimizer),
        ):
            grads = tape.gradient(loss, network.trainable_variables)
            optimizer.apply_gradients(zip(grads, network.trainable_variables, strict=True))
        return {
            "G_loss": total_loss_G,
            "F_loss": total_loss_F,
            "D_X_loss": disc_X_loss,
            "D_Y_loss": disc_Y_loss,
        }


adv_loss_fn = keras.losses.MeanSquaredError()


def generator_loss_fn(fake):
    return adv_loss_fn(ops.ones_like(fake), fake)


def discriminator_loss_fn(real, fake):
    return (adv_loss_fn(ops.ones_like(real), real) + adv_loss_fn(ops.zeros_like(fake), fake)) * 0.5


cycle_gan_model = CycleGan(
    generator_G=get_generator("generator_G"),
    generator_F=get_generator("generator_F"),
    discriminator_X=get_discriminator("discriminator_X"),
    discriminator_Y=get_discriminator("discriminator_Y"),
)
cycle_gan_model.compile(
    gen_G_optimizer=keras.optimizers.Adam(learning_rate=2e-4, beta_1=0.5),
    gen_F_optimizer=keras.optimizers.Adam(learning_rate=2e-4, beta_1=0.5),
    disc_X_optimizer=keras.optimizers.Adam(learning_rate=2e-4, beta_1=0.5),
    disc_Y_optimizer=keras.optimizers.Adam(learning_rate=2e-4, beta_1=0.5),
    gen_loss=generator_loss_fn,
    disc_loss=discriminator_loss_fn,
)
cycle_gan_model.fit(
    tf.data.Dataset.zip((train_horses, train_zebras)),
    epochs=2,
    callbacks=[PreemptionCallback("runs/cyclegan")],
)
