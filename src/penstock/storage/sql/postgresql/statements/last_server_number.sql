-- The highest number that a server has or had; 0: none.
SELECT coalesce(max(number), 0) FROM penstock_server
