-- The highest server number ever leased; 0 if there is none.
SELECT coalesce(max(number), 0) FROM penstock_server
