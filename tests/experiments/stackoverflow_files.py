"""Small files of the form of TFF's StackOverflow."""

import sqlite3

import tensorflow as tf


def _example(tokens):
  values = {'creation_date': b'2010', 'tags': b'', 'title': b'', 'type': b'q'}
  feature = {
    name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    for name, value in {**values, 'tokens': tokens.encode()}.items()
  }
  feature['score'] = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
  return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write_database(path, splits):
  """A file with the tables that TFF's database has."""
  connection = sqlite3.connect(path)
  connection.execute(
    'CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)'
  )
  connection.execute(
    'CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)'
  )
  for split, clients in splits.items():
    for client, sentences in clients.items():
      if sentences:
        connection.execute(
          'INSERT INTO client_metadata VALUES (?, ?, ?)', (client, split, len(sentences))
        )
      for sentence in sentences:
        connection.execute(
          'INSERT INTO examples VALUES (?, ?, ?)', (split, client, _example(sentence))
        )
  connection.commit()
  connection.close()


def word_counts(words):
  return ''.join(f'{w} {99 - i}\n' for i, w in enumerate(words)).encode()
